"""What completions and chats have in common as requests: the sampling fields, and how they become parameters.

Upstream writes them twice, in `upstream/vllm/entrypoints/openai/completion/protocol.py` and in
`upstream/vllm/entrypoints/openai/chat_completion/protocol.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mini_vllm.entrypoints.openai.engine.protocol import AnyResponseFormat, OpenAIBaseModel, StreamOptions
from mini_vllm.entrypoints.openai.engine.structured_outputs import StructuredOutputs
from mini_vllm.entrypoints.openai.engine.validation import check_sampling
from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.renderers.params import TokenizeParams
from mini_vllm.sampling_params import BeamSearchParams, RepetitionDetectionParams, RequestOutputKind, SamplingParams
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.utils import random_uuid

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
DEFAULTS = {"repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""What a field that is absent means, where the model's own defaults do not say it."""
_FORMER = {
    **{f"guided_{kind}": f"structured_outputs={{'{kind}': …}}" for kind in ("json", "regex", "choice", "grammar")},
    "guided_whitespace_pattern": "structured_outputs={'whitespace_pattern': …}",
    "guided_decoding_backend": "--structured-outputs-config of the server",
    "functions": "tools",
    "function_call": "tool_choice",
}
"""Fields of former releases, and of OpenAI's, and what they are called now."""


class GenerationRequest(OpenAIBaseModel):
    """The shared fields. `to_sampling_params` may be called once: `response_format` is turned into a constraint."""

    model: str | None = None
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = 0.0
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: str | list[str] | None = Field(default_factory=list)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    response_format: AnyResponseFormat | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int = Field(default=0, ge=INT64_MIN, le=INT64_MAX)
    request_id: str = Field(default_factory=random_uuid)
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, str | int | float] | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None

    echo: Any
    n: Any
    max_tokens: Any
    add_special_tokens: Any

    def requested_max_tokens(self) -> int | None:
        """Output tokens asked for, or None."""
        return self.max_tokens

    def num_logprobs(self) -> int | None:
        """Log-probabilities asked for of every output token, or None."""
        raise NotImplementedError

    def echoed_logprobs(self) -> int | None:
        """Log-probabilities asked for of the prompt's tokens where the prompt is echoed."""
        raise NotImplementedError

    def build_tok_params(self, max_model_len: int, max_tokens_name: str = "max_tokens") -> TokenizeParams:
        """How long the prompt may be (upstream: `CompletionRequest.build_tok_params` and its like)."""
        return TokenizeParams(
            max_total_tokens=max_model_len,
            max_output_tokens=self.requested_max_tokens() or 0,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
            add_special_tokens=self.add_special_tokens,
            needs_detokenization=bool(self.echo and not self.return_token_ids),
            max_total_tokens_param="max_model_len",
            max_output_tokens_param=max_tokens_name,
        )

    def _constraint(self) -> StructuredOutputsParams | None:
        """`structured_outputs`, with what `response_format` adds to it."""
        form = self.response_format
        given: Any = self.structured_outputs  # the parameters, once it is checked
        added: dict[str, Any] = {}
        if form is not None and form.type == "json_object":
            added["json_object"] = True
        elif form is not None and form.type == "json_schema":
            added["json"] = form.json_schema.json_schema  # type: ignore[union-attr]
        elif form is not None and form.type == "structural_tag":
            added["structural_tag"] = json.dumps(form.model_dump(by_alias=True))
        if not added:
            return given
        return StructuredOutputsParams(**added) if given is None else replace(given, **added)

    def to_sampling_params(self, max_tokens: int, default_sampling_params: dict[str, Any]) -> SamplingParams:
        """The parameters for the engine.

        Args:
            max_tokens: as `get_max_tokens` found it. default_sampling_params: the model's own, below the request's.

        Raises:
            VLLMValidationError, ValueError: what is wrong, in upstream's words.

        Upstream: `CompletionRequest.to_sampling_params`, `ChatCompletionRequest.to_sampling_params`.
        """
        values: dict[str, Any] = {}
        for name in _SAME:
            if name in type(self).model_fields and (given := getattr(self, name)) is not None:
                values[name] = given
        for name, default in DEFAULTS.items():
            given = getattr(self, name)
            values[name] = default_sampling_params.get(name, default) if given is None else given
        prompt_logprobs = self.prompt_logprobs
        if prompt_logprobs is None and self.echo:
            prompt_logprobs = self.echoed_logprobs()
        values.update(
            max_tokens=max_tokens,
            logprobs=self.num_logprobs(),
            prompt_logprobs=prompt_logprobs,
            structured_outputs=self._constraint(),
            output_kind=RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY,
            extra_args=self._extra_args(),
            skip_clone=True,
        )
        check_sampling(values)
        return SamplingParams.from_optional(**values)

    def to_beam_search_params(self, max_tokens: int, default_sampling_params: dict[str, Any]) -> BeamSearchParams:
        """The parameters of a search: `n` is its width."""
        temperature = self.temperature
        if temperature is None:
            temperature = default_sampling_params.get("temperature", DEFAULTS["temperature"])
        return BeamSearchParams(
            beam_width=1 if self.n is None else self.n,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=temperature,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )

    def _extra_args(self) -> dict[str, Any] | None:
        extra: dict[str, Any] = dict(self.vllm_xargs or {})
        if self.kv_transfer_params:
            extra["kv_transfer_params"] = self.kv_transfer_params
        return extra or None

    @model_validator(mode="before")
    @classmethod
    def refuse_former_names(cls, data: Any) -> Any:
        """A field that once bound the answer to a form is not passed over. Upstream drops it, and answers any text.

        Where it went: upstream/docs/features/structured_outputs.md.
        """
        for name, now in _FORMER.items():
            if isinstance(data, dict) and data.get(name) is not None:
                raise VLLMValidationError(f"{name} is not a field any more: use {now}.", parameter=name)
        return data

    @model_validator(mode="before")
    @classmethod
    def validate_response_format(cls, data: Any) -> Any:
        """A JSON schema has to be there where it is promised."""
        form = data.get("response_format") if isinstance(data, dict) else None
        if isinstance(form, dict) and form.get("type") == "json_schema" and form.get("json_schema") is None:
            raise VLLMValidationError(
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                parameter="response_format",
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def validate_stream_options(cls, data: Any) -> Any:
        """Options of a stream need a stream."""
        if isinstance(data, dict) and data.get("stream_options") and not data.get("stream"):
            raise VLLMValidationError(
                "Stream options can only be defined when `stream=True`.", parameter="stream_options"
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def check_prompt_logprobs(cls, data: Any) -> Any:
        """A stream has none; -1 means all."""
        wanted = data.get("prompt_logprobs") if isinstance(data, dict) else None
        if not isinstance(wanted, int):
            return data
        if data.get("stream") and (wanted > 0 or wanted == -1):
            raise VLLMValidationError(
                "`prompt_logprobs` are not available when `stream=True`.", parameter="prompt_logprobs"
            )
        if wanted < -1:
            raise VLLMValidationError(
                "`prompt_logprobs` must be a positive value or -1.", parameter="prompt_logprobs", value=wanted
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def check_structured_outputs_count(cls, data: Any) -> Any:
        """One of the three usual kinds."""
        given = data.get("structured_outputs") if isinstance(data, dict) else None
        kinds = [
            name for name in ("json", "regex", "choice") if isinstance(given, dict) and given.get(name) is not None
        ]
        if len(kinds) > 1:
            raise cls.too_many_kinds()
        return data

    @classmethod
    def too_many_kinds(cls) -> ValueError:
        """The error for several constraints at once."""
        return ValueError(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        )

    @model_validator(mode="before")
    @classmethod
    def check_cache_salt_support(cls, data: Any) -> Any:
        """A salt is a text with something in it."""
        salt = data.get("cache_salt") if isinstance(data, dict) else None
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise ValueError("Parameter 'cache_salt' must be a non-empty string if provided.")
        return data


_SAME = (
    "n", "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "logit_bias", "bad_words",
    "allowed_token_ids", "repetition_detection", "thinking_token_budget",
)  # fmt: skip
"""Fields that have the same name and meaning in `SamplingParams`."""
