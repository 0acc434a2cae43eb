"""What every serving object has: the engine, the names of the model, and how errors are told. Upstream twin:
`vllm/entrypoints/openai/engine/serving.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request

from mini_vllm.entrypoints.generate.beam_search.online import beam_search, beam_search_step_params
from mini_vllm.entrypoints.logger import RequestLogger
from mini_vllm.entrypoints.openai.engine.protocol import (
    ErrorResponse,
    GenerationError,
    PromptTokenUsageInfo,
    RequestResponseMetadata,
    UsageInfo,
)
from mini_vllm.entrypoints.openai.engine.validation import check_model_limits
from mini_vllm.entrypoints.openai.models.serving import OpenAIServingModels
from mini_vllm.entrypoints.utils import create_error_response, get_max_tokens
from mini_vllm.logger import init_logger
from mini_vllm.logprobs import Logprob
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams
from mini_vllm.tracing.utils import TRACE_CONTEXT, extract_trace_headers
from mini_vllm.utils import random_uuid
from mini_vllm.utils.checks import shown

logger = init_logger(__name__)
_DATA_PARALLEL_RANK: ContextVar[int | None] = ContextVar("data_parallel_rank", default=None)
"""The replica that the request which is answered in this task has chosen."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class ServingOptions:
    """Flags of the command line that change answers; see `entrypoints/openai/cli_args.py`."""

    response_role: str = "assistant"
    chat_template: str | None = None
    chat_template_content_format: str = "auto"
    default_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    return_tokens_as_token_ids: bool = False
    enable_auto_tools: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    parsers_as_released: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    enable_log_outputs: bool = False
    enable_log_deltas: bool = True
    system_fingerprint: str | None = None


class OpenAIServing:
    """The base of completions, chats and tokenization.

    Args:
        engine_client: an `AsyncLLM`. models: the names that requests may use. renderer: prompts to tokens.
        request_logger: or None, where requests are not logged.

    Upstream: upstream/vllm/entrypoints/openai/engine/serving.py:132 — `OpenAIServing`.
    """

    def __init__(
        self,
        engine_client: Any,
        models: OpenAIServingModels,
        renderer: Any,
        options: ServingOptions,
        request_logger: RequestLogger | None = None,
    ) -> None:
        self.engine_client, self.models, self.renderer = engine_client, models, renderer
        self.options, self.request_logger = options, request_logger
        self.max_model_len: int = engine_client.max_model_len
        self.has_kv_connector = engine_client.config.kv_transfer_config is not None
        self.default_sampling_params: dict[str, Any] = engine_client.default_sampling_params
        config = engine_client.config.model_config
        self.override_max_tokens: int | None = (
            config.override_generation_config.get("max_new_tokens")
            if config.generation_config in ("auto", "vllm")
            else self.default_sampling_params.get("max_tokens")
        )

    create_error_response = staticmethod(create_error_response)

    def create_streaming_error_response(self, error: Exception) -> str:
        """The JSON of an error that ends a stream."""
        if not isinstance(error, GenerationError):
            logger.error("a stream ended with an error", exc_info=error)
        return json.dumps(create_error_response(error).model_dump())

    def _check_model(self, model: str | None) -> ErrorResponse | None:
        return self.models.check_model(model)

    def _begin(self, prefix: str, request_id: str, raw_request: Request | None) -> tuple[str, RequestResponseMetadata]:
        """The id of a request: the header's, else the body's, behind a prefix. Raises what has killed the engine."""
        if self.engine_client.errored:
            raise self.engine_client.dead_error
        named = None if raw_request is None else raw_request.headers.get("X-Request-Id")
        metadata = RequestResponseMetadata(request_id=f"{prefix}-{request_id if named is None else named}")
        if raw_request is not None:
            raw_request.state.request_metadata = metadata
            TRACE_CONTEXT.set(extract_trace_headers(raw_request.headers))
        _DATA_PARALLEL_RANK.set(_data_parallel_rank(raw_request))
        return metadata.request_id, metadata

    async def _with_kv_transfer_rejection_cleanup(self, awaitable: Awaitable[_T], request: Any) -> _T:
        """What `awaitable` gives. Where it raises, is cancelled or gives an error, the request has not reached the
        engine, or not stayed in it: the KV connector hears of that, so that the engine which computed the prompt lets
        go of its blocks.

        Upstream: upstream/vllm/entrypoints/openai/engine/serving.py:420 — `_with_kv_transfer_rejection_cleanup`.
        """
        params = request.kv_transfer_params
        if params and not self.has_kv_connector:
            logger.warning("Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request.")
        if not self.has_kv_connector or not params or not params.get("do_remote_prefill"):
            return await awaitable
        rejected = True
        try:
            result = await awaitable
            rejected = isinstance(result, ErrorResponse)
            return result
        finally:
            if rejected:
                try:
                    await self.engine_client.notify_kv_transfer_request_rejected(request.request_id, params)
                except Exception:
                    about = "Failed to notify KV connector about rejected request %s"
                    logger.warning(about, request.request_id, exc_info=True)

    def _sampling_params(self, request: Any, prompt: Mapping[str, Any]) -> SamplingParams | BeamSearchParams:
        """The parameters for one prompt. Raises ValueError."""
        max_tokens = get_max_tokens(
            self.max_model_len,
            request.requested_max_tokens(),
            len(prompt["prompt_token_ids"]),
            self.default_sampling_params,
            self.override_max_tokens,
            request.truncate_prompt_tokens,
        )
        processor = self.engine_client.input_processor
        if request.use_beam_search:
            beams = request.to_beam_search_params(max_tokens, self.default_sampling_params)
            check_model_limits(beam_search_step_params(beams), processor.vocab_size, processor.max_logprobs)
            return beams
        params = request.to_sampling_params(max_tokens, self.default_sampling_params)
        check_model_limits(params, processor.vocab_size, processor.max_logprobs)
        highest = max(prompt["prompt_token_ids"])
        if highest >= processor.vocab_size:
            raise ValueError(f"Token id {highest} is out of vocabulary")
        return params

    def _generate(
        self,
        prompt: Mapping[str, Any],
        params: SamplingParams | BeamSearchParams,
        request_id: str,
        priority: int,
        lora_request: LoRARequest | None = None,
        **about_reasoning: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The one line of inference. Inside, ids are unique, whatever clients call their requests, as upstream.

        Upstream: upstream/vllm/v1/engine/input_processor.py:215 — `InputProcessor.assign_request_id`.
        """
        if self.request_logger is not None:
            self.request_logger.log_inputs(request_id, prompt.get("prompt"), prompt["prompt_token_ids"], params)
        if isinstance(params, BeamSearchParams):
            return beam_search(self.engine_client, prompt, request_id, params, lora_request)
        inside = f"{request_id}-{random_uuid():.8}"
        if self.engine_client.output_processor.tracer is not None:
            self.engine_client.output_processor.tracer.remember(inside, request_id)
        about: dict[str, Any] = {"priority": priority, "lora_request": lora_request, **about_reasoning}
        about["data_parallel_rank"] = _DATA_PARALLEL_RANK.get()
        return self.engine_client.generate(dict(prompt), params, inside, **about)

    @staticmethod
    def _raise_if_error(output: CompletionOutput, request_id: str) -> None:
        """Raise `GenerationError` for a request that ended with "error", with what the engine says of it.

        Upstream: upstream/vllm/entrypoints/openai/engine/serving.py:199 — `OpenAIServing._raise_if_error`.
        """
        if output.finish_reason == "error":
            logger.error("Request %s failed with an internal error during generation", request_id)
            raise GenerationError(f"Internal server error: {output.stop_reason or 'the generation failed'}")

    def _usage(self, num_prompt: int, num_generated: int, num_cached: int | None = None) -> UsageInfo:
        """Tokens of a request; `num_cached` is told where the server was asked to."""
        usage = UsageInfo(
            prompt_tokens=num_prompt, completion_tokens=num_generated, total_tokens=num_prompt + num_generated
        )
        if self.options.enable_prompt_tokens_details and num_cached:
            usage.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=num_cached)
        return usage

    def _as_token_ids(self, wanted: bool | None) -> bool:
        return self.options.return_tokens_as_token_ids if wanted is None else wanted

    def decoded_token(self, entry: Logprob | None, token_id: int, as_token_id: bool) -> str:
        """The text of a token, or "token_id:N".

        Upstream: upstream/vllm/entrypoints/openai/engine/serving.py:573 — `OpenAIServing._get_decoded_token`.
        """
        if as_token_id:
            return f"token_id:{token_id}"
        if entry is not None and entry.decoded_token is not None:
            return entry.decoded_token
        return self.renderer.get_tokenizer().decode([token_id], skip_special_tokens=False)

    def client_disconnected(self) -> ErrorResponse:
        """Nobody reads it."""
        return create_error_response("Client disconnected")

    def no_output(self) -> ErrorResponse:
        """The engine ended a request without a word."""
        return create_error_response(
            "No output received from the engine.", "InternalServerError", HTTPStatus.INTERNAL_SERVER_ERROR
        )


def clamp_prompt_logprobs(prompt_logprobs: Any) -> Any:
    """Minus infinity, which JSON has not, becomes -9999.0, in place.

    Upstream: upstream/vllm/entrypoints/openai/engine/serving.py:600 — `clamp_prompt_logprobs`.
    """
    for position in prompt_logprobs or ():
        for entry in (position or {}).values():
            if entry.logprob == float("-inf"):
                entry.logprob = -9999.0
    return prompt_logprobs


def _data_parallel_rank(raw_request: Request | None) -> int | None:
    """What the header says, for a router in front of this server.

    Raises ValueError: it is no number. Upstream passes over that.
    Upstream: upstream/vllm/entrypoints/openai/engine/serving.py:406 — `_get_data_parallel_rank`.
    """
    text = None if raw_request is None else raw_request.headers.get("X-data-parallel-rank")
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"X-data-parallel-rank must be the number of a replica, got {shown(text, 40)}")
    return None if text is None else int(text[:20])
