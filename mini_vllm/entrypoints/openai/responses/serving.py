"""`/v1/responses` on top of the chat. Upstream twin: `vllm/entrypoints/openai/responses/serving.py`.

Responses are not kept, as upstream without VLLM_ENABLE_RESPONSES_API_STORE: no other can go on from them, and none runs
in the background.
"""

from __future__ import annotations

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
from mini_vllm.entrypoints.openai.responses.streaming_events import ItemStream, logprobs_of
from mini_vllm.entrypoints.openai.responses.utils import output_items, to_chat_request
from mini_vllm.entrypoints.utils import create_error_response

_NO_STORE = (
    "This engine does not support `store=True` and therefore does not support the background mode: responses are not "
    "kept."
)


class OpenAIServingResponses(OpenAIServingChat):
    """Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:153 — `OpenAIServingResponses`."""

    async def create_responses(
        self, request: ResponsesRequest, raw_request: Request | None = None
    ) -> AsyncGenerator[str, None] | ResponsesResponse | ErrorResponse:
        """A stream of events, a response, or an error."""
        refused = self._check_model(request.model)
        if refused is not None:
            return refused
        if request.background:
            return create_error_response(_NO_STORE, "invalid_request_error", param="background")
        if request.previous_response_id is not None:
            return not_found(request.previous_response_id)
        chat = to_chat_request(request)
        chat.return_token_ids = chat.return_prompt_text = request.enable_response_messages
        context = await self.start(chat, raw_request)
        if isinstance(context, ErrorResponse):
            return context
        if request.stream:
            return self.responses_stream_generator(request, context)
        return await self.responses_full_generator(request, context)

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
        shown = self._messages_shown(answer) if request.enable_response_messages else {}
        return self._response(request, context, items, status, usage, **shown)

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
            done = self._response(request, context, stream.items, status, usage)
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
