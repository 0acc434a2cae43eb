"""`/v1/chat/completions`: from a conversation to the engine, and back. Upstream twin:
`vllm/entrypoints/openai/chat_completion/serving.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from mini_vllm.entrypoints.openai.chat_completion.choice import finish_reason, last_message_of, make_message
from mini_vllm.entrypoints.openai.chat_completion.logprobs import create_chat_logprobs
from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionLogProbs,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
)
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse, RequestResponseMetadata
from mini_vllm.entrypoints.openai.engine.serving import OpenAIServing, clamp_prompt_logprobs
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams


@dataclass
class ChatContext:
    """One request on its way."""

    request: ChatCompletionRequest
    request_id: str
    metadata: RequestResponseMetadata
    model_name: str
    created: int
    role: str
    conversation: list[dict[str, Any]]
    outputs: AsyncGenerator[RequestOutput, None]
    params: SamplingParams | BeamSearchParams
    num_cached_tokens: int = 0


class OpenAIServingChat(OpenAIServing):
    """Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:85 — `OpenAIServingChat`."""

    openai_serving_render: Any
    parsers: Parsers

    async def create_chat_completion(
        self, request: ChatCompletionRequest, raw_request: Request | None = None
    ) -> AsyncGenerator[str, None] | ChatCompletionResponse | ErrorResponse:
        """A stream of events, an answer, or an error.

        Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:228 — `create_chat_completion`.
        """
        created = self._create_chat_completion(request, raw_request)
        return await self._with_kv_transfer_rejection_cleanup(created, request)

    async def _create_chat_completion(
        self, request: ChatCompletionRequest, raw_request: Request | None
    ) -> AsyncGenerator[str, None] | ChatCompletionResponse | ErrorResponse:
        from mini_vllm.entrypoints.openai.chat_completion.stream import chat_completion_stream_generator

        context = await self.start(request, raw_request)
        if isinstance(context, ErrorResponse):
            return context
        if request.stream:
            return chat_completion_stream_generator(self, context)
        return await self.chat_completion_full_generator(context)

    async def start(self, request: ChatCompletionRequest, raw_request: Request | None) -> ChatContext | ErrorResponse:
        """Check, render, and hand over to the engine."""
        refused = self._check_model(request.model)
        if refused is not None:
            return refused
        request_id, metadata = self._begin("chatcmpl", request.request_id, raw_request)
        rendered = await self.openai_serving_render.render_chat(request)
        if isinstance(rendered, ErrorResponse):
            return rendered
        conversation, prompt = rendered
        params = self._sampling_params(request, prompt)
        thinking = self.parsers.about_reasoning(request, prompt["prompt_token_ids"])
        adapter = self.models.lora_requests.get(request.model or "")
        outputs = self._generate(prompt, params, request_id, request.priority, adapter, **thinking)
        role = self.options.response_role if request.add_generation_prompt else request.messages[-1]["role"]
        name = self.models.model_name(adapter)
        return ChatContext(request, request_id, metadata, name, int(time.time()), role, conversation, outputs, params)

    async def chat_completion_full_generator(self, context: ChatContext) -> ChatCompletionResponse | ErrorResponse:
        """The whole answer.

        Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:1006 — `chat_completion_full_generator`.
        """
        final: RequestOutput | None = None
        try:
            async for output in context.outputs:
                final = output
        except asyncio.CancelledError:
            return self.client_disconnected()
        if final is None:
            return self.no_output()
        context.num_cached_tokens = final.num_cached_tokens or 0
        choices = [self._choice(output, context, final.prompt_token_ids) for output in final.outputs]
        num_generated = sum(len(output.token_ids) for output in final.outputs)
        usage = self._usage(len(final.prompt_token_ids), num_generated, final.num_cached_tokens)
        context.metadata.final_usage_info = usage
        request = context.request
        return ChatCompletionResponse(
            id=context.request_id,
            created=context.created,
            model=context.model_name,
            choices=choices,
            usage=usage,
            system_fingerprint=self.options.system_fingerprint,
            prompt_logprobs=clamp_prompt_logprobs(final.prompt_logprobs),
            prompt_token_ids=final.prompt_token_ids if request.return_token_ids else None,
            prompt_text=final.prompt if request.return_prompt_text else None,
            kv_transfer_params=final.kv_transfer_params,
        )

    def _choice(
        self, output: CompletionOutput, context: ChatContext, prompt_token_ids: list[int]
    ) -> ChatCompletionResponseChoice:
        self._raise_if_error(output, context.request_id)
        request = context.request
        message, called = make_message(request, self.parsers, context.role, output.text, prompt_token_ids)
        if request.echo:
            message.content = last_message_of(context.conversation, context.role) + (message.content or "")
        self._log_output(context, message.content or "", output)
        return ChatCompletionResponseChoice(
            index=output.index,
            message=message,
            logprobs=self.logprobs_of(request, output),
            finish_reason=finish_reason(request, output.finish_reason, called, message, self.parsers.as_released),
            stop_reason=output.stop_reason,
            token_ids=list(output.token_ids) if request.return_token_ids else None,
        )

    def logprobs_of(self, request: ChatCompletionRequest, output: CompletionOutput) -> ChatCompletionLogProbs | None:
        """The log-probabilities of an output's tokens, where the request asked for them."""
        if not request.logprobs or request.top_logprobs is None or output.logprobs is None:
            return None
        as_token_id = self._as_token_ids(request.return_tokens_as_token_ids)
        return create_chat_logprobs(
            output.token_ids,
            output.logprobs,
            request.top_logprobs,
            lambda entry, token_id: self.decoded_token(entry, token_id, as_token_id),
        )

    def _log_output(
        self, context: ChatContext, text: str, output: CompletionOutput, streams: bool = False, delta: bool = False
    ) -> None:
        if not self.options.enable_log_outputs or self.request_logger is None:
            return
        if text and (self.options.enable_log_deltas or not delta):
            reason = output.finish_reason
            self.request_logger.log_outputs(context.request_id, text, output.token_ids, reason, streams, delta)
