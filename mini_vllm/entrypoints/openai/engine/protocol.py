"""What goes over the wire in more than one endpoint. Upstream twin: `vllm/entrypoints/openai/engine/protocol.py`.

Here: the functions a model may call, its calls, and the deltas of a streamed answer.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mini_vllm.entrypoints.chat_utils import make_tool_call_id


class OpenAIBaseModel(BaseModel):
    """Fields that nobody declared are kept, as OpenAI's API allows."""

    model_config = ConfigDict(extra="allow")


class FunctionDefinition(OpenAIBaseModel):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class FunctionCall(OpenAIBaseModel):
    """A call; `arguments` is a JSON text. `id` is the id that the model itself gave, and is not sent."""

    id: str | None = Field(default=None, exclude=True)
    name: str
    arguments: str


class ToolCall(OpenAIBaseModel):
    """A whole call, with the id by which the client answers it."""

    id: str = Field(default_factory=make_tool_call_id)
    type: Literal["function"] = "function"
    function: FunctionCall


class DeltaFunctionCall(BaseModel):
    """A part of a call: first its name, then its arguments, piece by piece."""

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(OpenAIBaseModel):
    """Which call (`index`) goes on; `id` and `type` come with its first part alone."""

    id: str | None = None
    type: Literal["function"] | None = None
    index: int
    function: DeltaFunctionCall | None = None


class ExtractedToolCallInformation(BaseModel):
    """What a tool parser finds in a whole answer: calls, and the text that is none."""

    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


class DeltaMessage(OpenAIBaseModel):
    """What one step adds to a streamed answer."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] = Field(default_factory=list)
