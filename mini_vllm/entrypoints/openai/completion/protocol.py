"""`/v1/completions`: what comes in and what goes out. Upstream twin:
`vllm/entrypoints/openai/completion/protocol.py`.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mini_vllm.entrypoints.openai.engine.generation_request import GenerationRequest
from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel, UsageInfo
from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.logprobs import Logprob
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils import random_uuid


class CompletionRequest(GenerationRequest):
    """A prompt to continue: a text, token ids, or a list of either.

    Upstream: upstream/vllm/entrypoints/openai/completion/protocol.py:42 — `CompletionRequest`.
    """

    prompt: list[Annotated[int, Field(ge=0)]] | list[list[Annotated[int, Field(ge=0)]]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int | None = 16
    n: int = 1
    suffix: str | None = None
    prompt_embeds: bytes | list[bytes] | None = None
    add_special_tokens: bool = True

    def num_logprobs(self) -> int | None:
        """`logprobs` is a number here."""
        return self.logprobs

    def echoed_logprobs(self) -> int | None:
        """As many as of the output."""
        return self.logprobs

    def to_sampling_params(self, max_tokens: int, default_sampling_params: dict[str, Any]) -> SamplingParams:
        """An echo without generation still generates one token, which nobody sees."""
        return super().to_sampling_params(
            1 if self.echo and self.max_tokens == 0 else max_tokens, default_sampling_params
        )

    @model_validator(mode="before")
    @classmethod
    def check_logprobs(cls, data: Any) -> Any:
        """-1 is for chats alone."""
        wanted = data.get("logprobs") if isinstance(data, dict) else None
        if isinstance(wanted, int) and wanted < 0:
            raise VLLMValidationError("`logprobs` must be a positive value.", parameter="logprobs", value=wanted)
        return data

    @model_validator(mode="before")
    @classmethod
    def validate_prompt_and_prompt_embeds(cls, data: Any) -> Any:
        """One of the two is there."""
        if isinstance(data, dict) and data.get("prompt") in (None, "") and data.get("prompt_embeds") in (None, []):
            raise ValueError("Either prompt or prompt_embeds must be provided and non-empty.")
        return data

    @classmethod
    def too_many_kinds(cls) -> ValueError:
        """Here the error names its field."""
        return VLLMValidationError(str(super().too_many_kinds()), parameter="structured_outputs")


class CompletionLogProbs(OpenAIBaseModel):
    """Four lists, one entry a token."""

    text_offset: list[int] = Field(default_factory=list)
    token_logprobs: list[float | None] = Field(default_factory=list)
    tokens: list[str] = Field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = Field(default_factory=list)


class CompletionResponseChoice(OpenAIBaseModel):
    """One completion. `stop_reason` is the stop string or stop id that ended it."""

    index: int
    text: str
    logprobs: CompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    prompt_token_ids: list[int] | None = None
    routed_experts: str | None = None


class CompletionResponse(OpenAIBaseModel):
    """All completions of all prompts."""

    id: str = Field(default_factory=lambda: f"cmpl-{random_uuid()}")
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[CompletionResponseChoice]
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    system_fingerprint: str | None = None
    usage: UsageInfo
    kv_transfer_params: dict[str, Any] | None = None


class CompletionResponseStreamChoice(OpenAIBaseModel):
    """What is new of one completion."""

    index: int
    text: str
    logprobs: CompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionStreamResponse(OpenAIBaseModel):
    """One event of a stream; the last has the usage, where that was asked for."""

    id: str = Field(default_factory=lambda: f"cmpl-{random_uuid()}")
    object: str = "text_completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[CompletionResponseStreamChoice]
    usage: UsageInfo | None = Field(default=None)
    system_fingerprint: str | None = None
