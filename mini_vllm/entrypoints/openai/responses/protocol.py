"""`/v1/responses`: what comes in and what goes out. Upstream twin: `vllm/entrypoints/openai/responses/protocol.py`.

Upstream takes the items from the openai package. Here they are dicts: which there are is said in `utils.py`.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from mini_vllm.entrypoints.openai.engine.generation_request import INT64_MAX, INT64_MIN
from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel
from mini_vllm.entrypoints.openai.engine.structured_outputs import StructuredOutputs
from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.utils import random_uuid

Item = dict[str, Any]
Status = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]


class Reasoning(OpenAIBaseModel):
    """How hard to think."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class ResponseTextConfig(OpenAIBaseModel):
    """The form of the text: `format` is {"type": "text" | "json_object" | "json_schema", "schema": …}."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    @model_validator(mode="after")
    def _fill_in(self) -> ResponseTextConfig:
        """A response shows all fields of a schema."""
        if self.format is not None and self.format.get("type") == "json_schema":
            self.format = {**self.format, "description": None, "strict": None, **self.format}
        return self


class InputTokensDetails(OpenAIBaseModel):
    """Of the input, what was cached."""

    cached_tokens: int
    input_tokens_per_turn: list[int] = Field(default_factory=list)
    cached_tokens_per_turn: list[int] = Field(default_factory=list)


class OutputTokensDetails(OpenAIBaseModel):
    """Of the output, what was thought."""

    reasoning_tokens: int = 0
    tool_output_tokens: int = 0
    output_tokens_per_turn: list[int] = Field(default_factory=list)
    tool_output_tokens_per_turn: list[int] = Field(default_factory=list)


class ResponseUsage(OpenAIBaseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponsesRequest(OpenAIBaseModel):
    """A text or a list of items to respond to.

    Upstream: upstream/vllm/entrypoints/openai/responses/protocol.py:136 — `ResponsesRequest`.
    """

    background: bool | None = False
    include: list[str] | None = None
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    logit_bias: dict[str, float] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = None
    text: ResponseTextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    tools: list[Item] = Field(default_factory=list)
    top_logprobs: int | None = 0
    top_p: float | None = None
    top_k: int | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    prompt_cache_key: str | None = None
    request_id: str = Field(default_factory=lambda: f"resp_{random_uuid()}")
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    priority: int = Field(default=0, ge=INT64_MIN, le=INT64_MAX)
    cache_salt: str | None = None
    enable_response_messages: bool = False
    previous_input_messages: list[dict[str, Any]] | None = None
    structured_outputs: StructuredOutputs | None = None
    repetition_penalty: float | None = None
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: str | list[str] | None = Field(default_factory=list)
    ignore_eos: bool = False
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def wants_logprobs(self) -> bool:
        """True where the text's log-probabilities are included."""
        return "message.output_text.logprobs" in (self.include or ())

    @model_validator(mode="before")
    @classmethod
    def validate_background(cls, data: Any) -> Any:
        """What runs in the background has to be kept."""
        if isinstance(data, dict) and data.get("background") and not data.get("store", True):
            raise VLLMValidationError("background can only be used when `store` is true", parameter="background")
        return data

    @model_validator(mode="before")
    @classmethod
    def validate_prompt(cls, data: Any) -> Any:
        """Prompts that OpenAI keeps are not here."""
        if isinstance(data, dict) and data.get("prompt") is not None:
            raise VLLMValidationError("prompt template is not supported", parameter="prompt")
        return data

    @model_validator(mode="before")
    @classmethod
    def check_cache_salt_support(cls, data: Any) -> Any:
        """A salt is a text with something in it."""
        salt = data.get("cache_salt") if isinstance(data, dict) else None
        if salt is not None and (not isinstance(salt, str) or not salt):
            message = "Parameter 'cache_salt' must be a non-empty string if provided."
            raise VLLMValidationError(message, parameter="cache_salt")
        return data

    @model_validator(mode="before")
    @classmethod
    def check_tool_usage(cls, data: Any) -> Any:
        """A choice needs tools, and a named tool has to be one of them."""
        if not isinstance(data, dict):
            return data
        tools, choice = data.get("tools") or [], data.get("tool_choice", "auto")
        named = isinstance(choice, dict) and choice.get("type") == "function"
        names = [tool.get("name") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        if not tools and choice in ("auto", "none"):
            data["tool_choice"] = "none"
        elif not tools and choice == "required":
            message = "Tool choice 'required' must be specified with 'tools' parameter."
            raise VLLMValidationError(message, parameter="tool_choice")
        elif named and choice.get("name") not in names:
            message = "Tool choice 'function' not found in 'tools' parameter."
            raise VLLMValidationError(message, parameter="tool_choice")
        return data


class ResponsesResponse(OpenAIBaseModel):
    """A response, done or on its way.

    Upstream: upstream/vllm/entrypoints/openai/responses/protocol.py:604 — `ResponsesResponse`.
    """

    model_config = ConfigDict(extra="forbid")

    id: str
    created_at: int = Field(default_factory=lambda: int(time.time()))
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    metadata: dict[str, str] | None = None
    model: str
    object: Literal["response"] = "response"
    output: list[Item]
    parallel_tool_calls: bool
    temperature: float
    tool_choice: Any
    tools: list[Item]
    top_p: float
    background: bool
    max_output_tokens: int
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    service_tier: str
    status: Status
    text: ResponseTextConfig | None = None
    top_logprobs: int | None = None
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    kv_transfer_params: dict[str, Any] | None = None
    input_messages: list[Item] | None = None
    output_messages: list[Item] | None = None
