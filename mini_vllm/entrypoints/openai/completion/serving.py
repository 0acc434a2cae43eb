"""`/v1/completions`: from a body to prompts in the engine, and back. Upstream twin:
`vllm/entrypoints/openai/completion/serving.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request

from mini_vllm.entrypoints.openai.completion.logprobs import create_completion_logprobs
from mini_vllm.entrypoints.openai.completion.protocol import (
    CompletionLogProbs,
    CompletionRequest,
    CompletionResponse,
    CompletionResponseChoice,
)
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse, RequestResponseMetadata
from mini_vllm.entrypoints.openai.engine.serving import OpenAIServing, clamp_prompt_logprobs
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.utils.async_utils import in_turns, merge_async_iterators


@dataclass
class CompletionContext:
    """One request on its way."""

    request: CompletionRequest
    request_id: str
    metadata: RequestResponseMetadata
    model_name: str
    created: int
    prompts: list[dict[str, Any]]
    outputs: AsyncGenerator[tuple[int, RequestOutput], None]


class OpenAIServingCompletion(OpenAIServing):
    """Upstream: upstream/vllm/entrypoints/openai/completion/serving.py:54 — `OpenAIServingCompletion`."""

    openai_serving_render: Any
    parsers: Parsers

    async def create_completion(
        self, request: CompletionRequest, raw_request: Request | None = None
    ) -> AsyncGenerator[str, None] | CompletionResponse | ErrorResponse:
        """A stream of events, an answer, or an error.

        Upstream: upstream/vllm/entrypoints/openai/completion/serving.py:110 — `create_completion`.
        """
        created = self._create_completion(request, raw_request)
        return await self._with_kv_transfer_rejection_cleanup(created, request)

    async def _create_completion(
        self, request: CompletionRequest, raw_request: Request | None
    ) -> AsyncGenerator[str, None] | CompletionResponse | ErrorResponse:
        from mini_vllm.entrypoints.openai.completion.stream import completion_stream_generator

        if request.use_beam_search and request.stream:
            return self.create_error_response("Streaming is not currently supported with beam search")
        refused = self._check_model(request.model)
        if refused is not None:
            return refused
        request_id, metadata = self._begin("cmpl", request.request_id, raw_request)
        prompts = await self.openai_serving_render.render_completion(request)
        if isinstance(prompts, ErrorResponse):
            return prompts
        all_params = [self._sampling_params(request, prompt) async for prompt in in_turns(prompts)]
        adapter = self.models.lora_requests.get(request.model or "")
        generators = [
            self._generate(
                prompt,
                params,
                f"{request_id}-{i}",
                request.priority,
                adapter,
                **self.parsers.about_raw_prompt(prompt["prompt_token_ids"]),
            )
            for i, (prompt, params) in enumerate(zip(prompts, all_params, strict=True))
        ]
        context = CompletionContext(
            request, request_id, metadata, self.models.model_name(adapter), int(time.time()), prompts,
            merge_async_iterators(*generators),
        )  # fmt: skip
        if request.stream:
            return completion_stream_generator(self, context)
        final: list[RequestOutput | None] = [None] * len(prompts)
        try:
            async for i, output in context.outputs:
                final[i] = output
        except asyncio.CancelledError:
            return self.client_disconnected()
        if any(output is None for output in final):
            return self.no_output()
        outputs = [output for output in final if output is not None]
        return await self.request_output_to_completion_response(outputs, context)

    def logprobs_of(
        self, request: CompletionRequest, token_ids: Any, entries: Any, initial_text_offset: int = 0
    ) -> CompletionLogProbs | None:
        """The lists of log-probabilities, where the request asked for them."""
        if request.logprobs is None:
            return None
        as_token_id = self._as_token_ids(request.return_tokens_as_token_ids)
        return create_completion_logprobs(
            token_ids,
            entries,
            request.logprobs,
            lambda entry, token_id: self.decoded_token(entry, token_id, as_token_id),
            initial_text_offset,
        )

    async def request_output_to_completion_response(
        self, final: list[RequestOutput], context: CompletionContext
    ) -> CompletionResponse:
        """The whole answer: all choices of the first prompt, then of the next.

        Upstream: upstream/vllm/entrypoints/openai/completion/serving.py:476 — `request_output_to_completion_response`.
        """
        choices: list[CompletionResponseChoice] = []
        async for result in in_turns(final):
            clamp_prompt_logprobs(result.prompt_logprobs)
            for output in result.outputs:
                self._raise_if_error(output, context.request_id)
                choices.append(self._choice(len(choices), result, output, context.request))
        usage = self._usage(
            sum(len(result.prompt_token_ids) for result in final),
            sum(len(output.token_ids) for result in final for output in result.outputs),
            final[-1].num_cached_tokens if final else None,
        )
        context.metadata.final_usage_info = usage
        return CompletionResponse(
            id=context.request_id,
            created=context.created,
            model=context.model_name,
            choices=choices,
            usage=usage,
            system_fingerprint=self.options.system_fingerprint,
            kv_transfer_params=final[0].kv_transfer_params if final else None,
        )

    def _choice(
        self, index: int, result: RequestOutput, output: CompletionOutput, request: CompletionRequest
    ) -> CompletionResponseChoice:
        text, token_ids, entries = echoed(request, result, output) if request.echo else plain(output)
        return CompletionResponseChoice(
            index=index,
            text=text,
            logprobs=self.logprobs_of(request, token_ids, entries),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            prompt_logprobs=cast(Any, result.prompt_logprobs),
            prompt_token_ids=result.prompt_token_ids if request.return_token_ids else None,
            token_ids=list(output.token_ids) if request.return_token_ids else None,
        )


def plain(output: CompletionOutput) -> tuple[str, list[int], Any]:
    """Text, ids and entries of an output."""
    return output.text, list(output.token_ids), output.logprobs


def echoed(request: CompletionRequest, result: RequestOutput, output: CompletionOutput) -> tuple[str, list[int], Any]:
    """The same behind the prompt's; of the prompt alone where no tokens were asked for."""
    prompt = "" if request.return_token_ids else result.prompt or ""
    if request.max_tokens == 0:
        return prompt, list(result.prompt_token_ids), result.prompt_logprobs
    entries = [*(result.prompt_logprobs or ()), *(output.logprobs or ())]
    return prompt + output.text, [*result.prompt_token_ids, *output.token_ids], entries
