"""A chat request and its tools. Upstream twin: `vllm/entrypoints/openai/chat_completion/protocol.py`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mini_vllm.entrypoints.openai.engine.protocol import FunctionDefinition, OpenAIBaseModel


class ChatCompletionToolsParam(OpenAIBaseModel):
    """A tool that a request offers; functions are the only kind."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class ChatCompletionNamedFunction(OpenAIBaseModel):
    """The name in a forced choice."""

    name: str


class ChatCompletionNamedToolChoiceParam(OpenAIBaseModel):
    """`tool_choice` as an object: this function, no other."""

    function: ChatCompletionNamedFunction
    type: Literal["function"] = "function"


class ChatCompletionRequest(OpenAIBaseModel):
    """The fields that parsers read."""

    messages: list[Any] = Field(default_factory=list)
    model: str | None = None
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatCompletionNamedToolChoiceParam | None = "none"
    skip_special_tokens: bool = True
    structured_outputs: Any = None
    response_format: Any = None
