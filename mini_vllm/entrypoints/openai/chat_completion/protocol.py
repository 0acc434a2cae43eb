"""`/v1/chat/completions`: what comes in and what goes out. Upstream twin:
`vllm/entrypoints/openai/chat_completion/protocol.py`.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, model_serializer, model_validator, with_config
from typing_extensions import Required, TypedDict

from mini_vllm.entrypoints.openai.chat_completion.tool_choice import check_tool_usage
from mini_vllm.entrypoints.openai.engine.generation_request import GenerationRequest
from mini_vllm.entrypoints.openai.engine.protocol import (
    DeltaMessage,
    FunctionCall,
    FunctionDefinition,
    OpenAIBaseModel,
    ToolCall,
    UsageInfo,
)
from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.logprobs import Logprob
from mini_vllm.renderers.params import ChatParams, merge_kwargs
from mini_vllm.utils import random_uuid
from mini_vllm.utils.checks import shown


@with_config(ConfigDict(extra="allow"))
class ChatCompletionMessageParam(TypedDict, total=False):
    """A message of a conversation; what else stands in it goes to the template.

    Upstream: upstream/vllm/entrypoints/chat_utils.py:322 — `CustomChatCompletionMessageParam`.
    """

    role: Required[str]
    content: str | list[Any] | None
    name: str
    tool_call_id: str | None
    tool_calls: list[dict[str, Any]] | None
    reasoning: str | None
    tools: list[dict[str, Any]] | None


class ChatMessage(OpenAIBaseModel):
    """The answer."""

    role: str
    content: str | None = None
    refusal: str | None = None
    annotations: Any | None = None
    audio: Any | None = None
    function_call: FunctionCall | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    reasoning: str | None = None


class ChatCompletionLogProb(OpenAIBaseModel):
    """A token and its log-probability; -9999.0 stands for minus infinity, which JSON has not."""

    token: str
    logprob: float = -9999.0
    bytes: list[int] | None = None


class ChatCompletionLogProbsContent(ChatCompletionLogProb):
    """The chosen token, and the likeliest ones in its place."""

    top_logprobs: list[ChatCompletionLogProb] = Field(default_factory=list)


class ChatCompletionLogProbs(OpenAIBaseModel):
    """One entry a token."""

    content: list[ChatCompletionLogProbsContent] | None = None


class ChatCompletionResponseChoice(OpenAIBaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatCompletionLogProbs | None = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: str | None = None


class ChatCompletionResponse(OpenAIBaseModel):
    """All answers to a conversation."""

    id: str = Field(default_factory=lambda: f"chatcmpl-{random_uuid()}")
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[ChatCompletionResponseChoice]
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    system_fingerprint: str | None = None
    usage: UsageInfo
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class ChatCompletionResponseStreamChoice(OpenAIBaseModel):
    """What is new of one answer."""

    index: int
    delta: DeltaMessage
    logprobs: ChatCompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletionStreamResponse(OpenAIBaseModel):
    """One event of a stream."""

    id: str = Field(default_factory=lambda: f"chatcmpl-{random_uuid()}")
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[ChatCompletionResponseStreamChoice]
    usage: UsageInfo | None = Field(default=None)
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None


class ChatCompletionToolsParam(OpenAIBaseModel):
    """A tool; functions are the only kind."""

    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None

    @model_validator(mode="after")
    def _propagate_defer_loading(self) -> ChatCompletionToolsParam:
        if self.defer_loading is not None and self.function.defer_loading is None:
            self.function.defer_loading = self.defer_loading
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Any) -> Any:
        data = handler(self)
        if self.defer_loading is None:
            data.pop("defer_loading", None)
        return data


class ChatCompletionNamedFunction(OpenAIBaseModel):
    """Which one."""

    name: str


class ChatCompletionNamedToolChoiceParam(OpenAIBaseModel):
    """The model has to call this one."""

    function: ChatCompletionNamedFunction
    type: Literal["function"] = "function"


class ChatCompletionRequest(GenerationRequest):
    """A conversation to answer.

    Upstream: upstream/vllm/entrypoints/openai/chat_completion/protocol.py:183 — `ChatCompletionRequest`.
    """

    messages: list[ChatCompletionMessageParam]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatCompletionNamedToolChoiceParam | None = "none"
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    bad_words: list[str] = Field(default_factory=list)
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None  # type: ignore[assignment]

    _grammar_from_tool_parser: bool = PrivateAttr(default=False)

    def requested_max_tokens(self) -> int | None:
        """The newer name wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def build_tok_params(self, max_model_len: int, max_tokens_name: str = "") -> Any:
        """The message about a length names the field that was given."""
        name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return super().build_tok_params(max_model_len, max_tokens_name or name)

    def num_logprobs(self) -> int | None:
        """`logprobs` is a switch here."""
        return self.top_logprobs if self.logprobs else None

    def echoed_logprobs(self) -> int | None:
        """As many as of the output."""
        return self.top_logprobs

    def build_chat_params(self, default_template: str | None, content_format: str) -> ChatParams:
        """The template and its variables.

        Upstream: upstream/vllm/entrypoints/openai/chat_completion/protocol.py:470 —
        `ChatCompletionRequest.build_chat_params`.
        """
        extra: dict[str, Any] = {
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "documents": self.documents,
            "reasoning_effort": self.reasoning_effort,
        }
        if self.reasoning_effort is not None and "enable_thinking" not in (self.chat_template_kwargs or {}):
            extra["enable_thinking"] = self.reasoning_effort != "none"
        variables = merge_kwargs(self.chat_template_kwargs, extra)
        return ChatParams(
            self.chat_template or default_template, content_format, variables, self.media_io_kwargs,
            self.mm_processor_kwargs,
        )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _normalize_messages(cls, data: Any) -> Any:
        """`reasoning_content`, the older name, becomes `reasoning`."""
        messages = data.get("messages") if isinstance(data, dict) else None
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, dict) and "reasoning_content" in message:
                older = message.pop("reasoning_content")
                if older is not None and message.get("reasoning") is None:
                    message["reasoning"] = older
        return data

    @model_validator(mode="after")
    def check_contents(self) -> ChatCompletionRequest:
        """Who asks has to say something, and a part of type "text" has one.

        Upstream: upstream/vllm/entrypoints/chat_utils.py:354 — `ChatCompletionMessageParam`, a union of OpenAI's types.
        """
        for at, message in enumerate(self.messages):
            content = message.get("content", "")
            if content is None and message["role"] not in ("assistant", "function"):
                raise ValueError(f"messages[{at}].content must be a text or a list of parts, got None")
            for part in content if isinstance(content, list) else ():
                if not isinstance(part, dict):
                    raise ValueError(f"messages[{at}].content: a part must be an object with a type, got {shown(part)}")
                if isinstance(part, dict) and part.get("type") == "text" and not isinstance(part.get("text"), str):
                    raise ValueError(f"messages[{at}].content: a part of type 'text' needs a text")
        return self

    @model_validator(mode="before")
    @classmethod
    def check_top_logprobs(cls, data: Any) -> Any:
        """How many needs whether."""
        wanted = data.get("top_logprobs") if isinstance(data, dict) else None
        if not isinstance(wanted, int):
            return data
        if wanted < -1:
            raise VLLMValidationError(
                "`top_logprobs` must be a positive value or -1.", parameter="top_logprobs", value=wanted
            )
        if wanted and not data.get("logprobs"):
            raise VLLMValidationError(
                "when using `top_logprobs`, `logprobs` must be set to true.", parameter="top_logprobs"
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def check_tool_usage(cls, data: Any) -> Any:
        """See `tool_choice.check_tool_usage`."""
        return check_tool_usage(data) if isinstance(data, dict) else data

    @model_validator(mode="before")
    @classmethod
    def check_generation_prompt(cls, data: Any) -> Any:
        """The last message is continued, or a new one begins."""
        if isinstance(data, dict) and data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise ValueError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return data
