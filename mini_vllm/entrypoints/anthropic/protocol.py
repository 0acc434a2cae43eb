"""`/v1/messages`: what comes in and what goes out. Upstream twin: `vllm/entrypoints/anthropic/protocol.py`."""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import BaseModel, field_validator, model_validator

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
BlockType = Literal["text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"]


class AnthropicError(BaseModel):
    """What is wrong."""

    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """The body of an error."""

    type: Literal["error"] = "error"
    error: AnthropicError


class AnthropicUsage(BaseModel):
    """Tokens of a request."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class AnthropicContentBlock(BaseModel):
    """A piece of a message; which fields are set follows from its type."""

    type: BlockType
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class AnthropicMessage(BaseModel):
    """A turn of the conversation."""

    role: Literal["user", "assistant"]
    content: str | list[AnthropicContentBlock]


class AnthropicTool(BaseModel):
    """A tool that the model may use."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    defer_loading: bool | None = None

    @field_validator("input_schema")
    @classmethod
    def validate_input_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """An object unless it says otherwise."""
        return schema if "type" in schema else {**schema, "type": "object"}


class AnthropicToolChoice(BaseModel):
    """Which tool has to be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None

    @model_validator(mode="after")
    def validate_name_required_for_tool(self) -> AnthropicToolChoice:
        """A certain tool has a name."""
        if self.type == "tool" and not self.name:
            raise ValueError("tool_choice.name is required when type is 'tool'")
        return self


class _Conversation(BaseModel):
    model: str
    messages: list[AnthropicMessage]

    @field_validator("model", check_fields=False)
    @classmethod
    def validate_model(cls, model: str) -> str:
        """Here the name is needed."""
        if not model:
            raise ValueError("Model is required")
        return model


class AnthropicMessagesRequest(_Conversation):
    """A conversation to go on with.

    Upstream: upstream/vllm/entrypoints/anthropic/protocol.py:103 — `AnthropicMessagesRequest`.
    """

    max_tokens: int
    metadata: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    system: str | list[AnthropicContentBlock] | None = None
    temperature: float | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: list[AnthropicTool] | None = None
    top_k: int | None = None
    top_p: float | None = None
    kv_transfer_params: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("max_tokens")
    @classmethod
    def validate_max_tokens(cls, wanted: int) -> int:
        """At least one."""
        if wanted <= 0:
            raise ValueError("max_tokens must be positive")
        return wanted


class AnthropicCountTokensRequest(_Conversation):
    """A conversation to count the tokens of."""

    system: str | list[AnthropicContentBlock] | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: list[AnthropicTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class AnthropicDelta(BaseModel):
    """What is new of a block, or of the message."""

    type: Literal["text_delta", "input_json_delta", "thinking_delta", "signature_delta"] | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class AnthropicMessagesResponse(BaseModel):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[AnthropicContentBlock]
    model: str
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage | None = None
    kv_transfer_params: dict[str, Any] | None = None

    def model_post_init(self, _context: Any) -> None:
        """An answer has an id."""
        if not self.id:
            self.id = f"msg_{int(time.time() * 1000)}"


class AnthropicStreamEvent(BaseModel):
    """One event of a stream."""

    type: Literal["message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta",
                  "content_block_stop", "ping", "error"]  # fmt: skip
    message: AnthropicMessagesResponse | None = None
    delta: AnthropicDelta | None = None
    content_block: AnthropicContentBlock | None = None
    index: int | None = None
    error: AnthropicError | None = None
    usage: AnthropicUsage | None = None


class AnthropicContextManagement(BaseModel):
    """Before anything was left out."""

    original_input_tokens: int


class AnthropicCountTokensResponse(BaseModel):
    """How many."""

    input_tokens: int
    context_management: AnthropicContextManagement | None = None
