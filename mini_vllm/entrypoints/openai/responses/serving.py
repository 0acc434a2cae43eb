"""`/v1/responses` on top of the chat. Upstream twin: `vllm/entrypoints/openai/responses/serving.py`.

With VLLM_ENABLE_RESPONSES_API_STORE=1 responses are kept in memory: others go on from them, and they are made in the
background. Without it `store` is passed over, as upstream.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from fastapi import Request

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from mini_vllm.entrypoints.openai.chat_completion.serving import ChatContext, OpenAIServingChat
from mini_vllm.entrypoints.openai.chat_completion.stream import StreamState
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.responses.protocol import (
    InputTokensDetails,
    Item,
    OutputTokensDetails,
    ResponsesRequest,
    ResponsesResponse,
    ResponseUsage,
)
from mini_vllm.entrypoints.openai.responses.store import MAX_KEPT, EventLog, Kept, ResponseStore
from mini_vllm.entrypoints.openai.responses.streaming_events import ItemStream, logprobs_of
from mini_vllm.entrypoints.openai.responses.utils import continue_from, output_items, to_chat_request
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
_NO_STORE = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
    "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)
_TWO_HISTORIES = "Only one of `previous_input_messages` and `previous_response_id` can be set."


class OpenAIServingResponses(OpenAIServingChat):
    """Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:153 — `OpenAIServingResponses`."""

    async def create_responses(
        self, request: ResponsesRequest, raw_request: Request | None = None
    ) -> AsyncGenerator[str, None] | ResponsesResponse | ErrorResponse:
        """A stream of events, a response, or an error.

        Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:325 — `create_responses`.
        """
        created = self._create_responses(request, raw_request)
        return await self._with_kv_transfer_rejection_cleanup(created, request)

    async def _create_responses(
        self, request: ResponsesRequest, raw_request: Request | None
    ) -> AsyncGenerator[str, None] | ResponsesResponse | ErrorResponse:
        refused = self._check_model(request.model) or self._check_history(request)
        if refused is not None:
            return refused
        if self.store is None:
            request.store = False
        chat = to_chat_request(request, self._history(request))
        chat.return_token_ids = chat.return_prompt_text = request.enable_response_messages
        messages: list[Any] = list(chat.messages)
        context = await self.start(chat, raw_request)
        if isinstance(context, ErrorResponse):
            return context
        kept = None
        if self.store is not None and request.store:
            kept = self.store.open(request.request_id, messages)
        if kept is not None and request.background:
            return self._begin_in_background(request, context, kept)
        if request.stream:
            return self.responses_stream_generator(request, context)
        return await self.responses_full_generator(request, context)

    @functools.cached_property
    def store(self) -> ResponseStore | None:
        """Where responses are kept, or None."""
        if os.environ.get("VLLM_ENABLE_RESPONSES_API_STORE", "0").strip() not in ("1", "true", "True"):
            return None
        logger.warning("responses are kept in memory (VLLM_ENABLE_RESPONSES_API_STORE), the last %d of them", MAX_KEPT)
        return ResponseStore()

    def _check_history(self, request: ResponsesRequest) -> ErrorResponse | None:
        """What cannot be gone on from.

        Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:292 — `_validate_create_responses_input`.
        """
        if request.background and self.store is None:
            return create_error_response(_NO_STORE, "invalid_request_error", param="background")
        previous = request.previous_response_id
        if previous and request.previous_input_messages:
            return create_error_response(_TWO_HISTORIES, "invalid_request_error", param="previous_response_id")
        if previous is not None and (self.store is None or self.store.find(previous) is None):
            return not_found(previous)
        return None

    def _history(self, request: ResponsesRequest) -> list[dict[str, Any]]:
        """The conversation so far, less its instructions."""
        if request.previous_response_id is None or self.store is None:
            return []
        kept = self.store.find(request.previous_response_id)
        assert kept is not None and kept.response is not None
        return continue_from(kept.messages, kept.response.output)

    def _begin_in_background(
        self, request: ResponsesRequest, context: ChatContext, kept: Kept
    ) -> ResponsesResponse | AsyncGenerator[str, None]:
        assert self.store is not None
        queued = self._response(request, context, [], "queued", None)
        if not request.stream:
            self.store.run(queued, self._whole_in_background(request, context))
            return queued.model_copy()
        log = kept.log = EventLog()
        self.store.run(queued, self._stream_in_background(request, context, log))
        return log.read()

    async def _whole_in_background(self, request: ResponsesRequest, context: ChatContext) -> bool:
        try:
            return not isinstance(await self.responses_full_generator(request, context), ErrorResponse)
        except Exception as error:
            logger.error("response %s has failed: %s", request.request_id, error)
            return False

    async def _stream_in_background(self, request: ResponsesRequest, context: ChatContext, log: EventLog) -> bool:
        async with aclosing(self.responses_stream_generator(request, context)) as stream:
            await log.fill(stream)
        return False  # what has come to an end is no longer running

    async def retrieve_responses(
        self, response_id: str, starting_after: int | None, stream: bool | None
    ) -> AsyncGenerator[str, None] | ResponsesResponse | ErrorResponse:
        """A response that is kept; its events, where it was streamed in the background.

        Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:1305 — `retrieve_responses`.
        """
        kept = None if self.store is None else self.store.find(response_id)
        if kept is None or kept.response is None:
            return not_found(response_id)
        if not stream:
            return kept.response
        if kept.log is None:
            message = f"Response with id '{response_id}' was not streamed in the background."
            return create_error_response(message, "invalid_request_error", param="stream")
        return kept.log.read(starting_after)

    async def cancel_responses(self, response_id: str) -> ResponsesResponse | ErrorResponse:
        """End a response that is made in the background.

        Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:1328 — `cancel_responses`.
        """
        kept = None if self.store is None else self.store.find(response_id)
        if self.store is None or kept is None or kept.response is None:
            return not_found(response_id)
        if not kept.running:
            message = "Cannot cancel a synchronous response."
            return create_error_response(message, "invalid_request_error", param="response_id")
        await self.store.cancel(kept)
        return kept.response

    def _keep(self, response: ResponsesResponse) -> ResponsesResponse:
        if self.store is not None:
            self.store.keep(response)
        return response

    async def responses_full_generator(
        self, request: ResponsesRequest, context: ChatContext
    ) -> ResponsesResponse | ErrorResponse:
        """The whole response."""
        answer = await self.chat_completion_full_generator(context)
        if isinstance(answer, ErrorResponse):
            return answer
        (choice,) = answer.choices
        logprobs = None if choice.logprobs is None else logprobs_of(choice.logprobs)
        items = output_items(choice.message, logprobs)
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        usage = self._response_usage(answer.usage, context)
        shown: dict[str, Any] = {"kv_transfer_params": answer.kv_transfer_params}
        if request.enable_response_messages:
            shown.update(self._messages_shown(answer))
        return self._keep(self._response(request, context, items, status, usage, **shown))

    def _messages_shown(self, answer: ChatCompletionResponse) -> dict[str, list[Item]]:
        """What went into the model and came out, as it is."""
        decode = self.renderer.get_tokenizer().decode
        prompt, (choice,) = answer.prompt_token_ids or [], answer.choices
        out = choice.token_ids or []
        raw = {"type": "raw_message_tokens"}
        text_in, text_out = answer.prompt_text or "", decode(out, skip_special_tokens=True)
        return {
            "input_messages": [{"message": text_in, "tokens": prompt, **raw}],
            "output_messages": [{"message": text_out, "tokens": out, **raw}],
        }

    def _response_usage(self, usage: Any, context: ChatContext) -> ResponseUsage:
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=context.num_cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=usage.total_tokens,
        )

    def _response(
        self,
        request: ResponsesRequest,
        context: ChatContext,
        items: list[Item],
        status: Any,
        usage: ResponseUsage | None,
        **shown: Any,
    ) -> ResponsesResponse:
        params: Any = context.params
        return ResponsesResponse(
            id=request.request_id,
            created_at=context.created,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            model=context.model_name,
            output=items,
            parallel_tool_calls=bool(request.parallel_tool_calls),
            temperature=params.temperature,
            top_p=params.top_p,
            background=bool(request.background),
            max_output_tokens=params.max_tokens or 0,
            status=status,
            top_logprobs=params.logprobs,
            truncation=request.truncation or "disabled",
            usage=usage,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            **{name: getattr(request, name) for name in _ECHOED},
            **shown,
        )

    async def responses_stream_generator(
        self, request: ResponsesRequest, context: ChatContext
    ) -> AsyncGenerator[str, None]:
        """Events, an error among them if one comes.

        Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:1472 — `responses_stream_generator`.
        """
        stream = ItemStream()
        try:
            for kind in ("response.created", "response.in_progress"):
                begun = self._response(request, context, [], "in_progress", None)
                yield stream.sse({"response": begun.model_dump(mode="json"), "type": kind})
            state, reason = StreamState(self, context), None
            async with aclosing(context.outputs) as outputs:
                async for result in outputs:
                    context.num_cached_tokens = result.num_cached_tokens or 0
                    reason = result.outputs[0].finish_reason or reason  # the engine's: a call that is cut is cut
                    for chunk in state.take(result):
                        for event in stream.take(chunk.choices[0]):
                            yield stream.sse(event)
            for event in stream.end():
                yield stream.sse(event)
            usage = self._response_usage(state.final_usage(), context)
            status = "incomplete" if reason == "length" else "completed"
            done = self._keep(self._response(request, context, stream.items, status, usage))
            yield stream.sse({"response": done.model_dump(mode="json"), "type": "response.completed"})
        except Exception as error:
            yield f"event: error\ndata: {self.create_streaming_error_response(error)}\n\n"


_ECHOED = ("instructions", "metadata", "tool_choice", "tools", "max_tool_calls", "previous_response_id", "prompt",
           "reasoning", "service_tier", "text", "user")  # fmt: skip
"""Fields of the request that the response repeats."""


def not_found(response_id: str) -> ErrorResponse:
    """No response is kept.

    Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:1357 — `_make_not_found_error`.
    """
    message = f"Response with id '{response_id}' not found."
    return create_error_response(message, "invalid_request_error", HTTPStatus.NOT_FOUND, param="response_id")
