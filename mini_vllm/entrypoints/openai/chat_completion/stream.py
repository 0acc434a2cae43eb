"""`/v1/chat/completions` as server-sent events.

Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:400 — `chat_completion_stream_generator`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.choice import last_message_of
from mini_vllm.entrypoints.openai.chat_completion.delta_as_released import make_delta_maker
from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
)
from mini_vllm.entrypoints.openai.chat_completion.serving import ChatContext, OpenAIServingChat
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.entrypoints.utils import should_include_usage
from mini_vllm.outputs import CompletionOutput, RequestOutput

Event = ChatCompletionStreamResponse


async def chat_completion_stream_generator(
    serving: OpenAIServingChat, context: ChatContext
) -> AsyncGenerator[str, None]:
    """Events, an error among them if one comes, and "[DONE]"."""
    try:
        state = StreamState(serving, context)
        async with aclosing(context.outputs) as outputs:
            async for result in outputs:
                for event in state.take(result):
                    yield f"data: {event.model_dump_json(exclude_unset=True)}\n\n"
        usage = state.final_usage()
        if state.include_usage:
            last = state.event([], usage=usage, system_fingerprint=serving.options.system_fingerprint)
            yield f"data: {last.model_dump_json(exclude_unset=True, exclude_none=True)}\n\n"
        context.metadata.final_usage_info = usage
    except Exception as error:
        yield f"data: {serving.create_streaming_error_response(error)}\n\n"
    yield "data: [DONE]\n\n"


class StreamState:
    """What has been sent of each choice."""

    def __init__(self, serving: OpenAIServingChat, context: ChatContext) -> None:
        self.serving, self.context = serving, context
        self.request = request = context.request
        self.num_choices = request.n or 1
        self.num_tokens = [0] * self.num_choices
        self.ended = [False] * self.num_choices
        self.num_prompt_tokens, self.num_cached = 0, None
        self.makers = [make_delta_maker(serving.parsers, request) for _ in range(self.num_choices)]
        self.begun = False
        self.include_usage, self.continuous_usage = should_include_usage(
            request.stream_options, serving.options.enable_force_include_usage
        )

    def event(self, choices: list[ChatCompletionResponseStreamChoice], **further: Any) -> Event:
        """An event with these choices."""
        context = self.context
        return ChatCompletionStreamResponse(
            id=context.request_id,
            object="chat.completion.chunk",
            created=context.created,
            model=context.model_name,
            choices=choices,
            **further,
        )

    def take(self, result: RequestOutput) -> Iterator[Event]:
        """The events of one output of the engine."""
        self.num_prompt_tokens = len(result.prompt_token_ids)
        if not self.begun:
            self.begun, self.num_cached = True, result.num_cached_tokens  # type: ignore[assignment]
            yield from self._opening(result)
        for output in result.outputs:
            event = None if self.ended[output.index] else self._event_of(output, result)
            if event is not None:
                yield event

    def _opening(self, result: RequestOutput) -> Iterator[Event]:
        """The role of each choice, with an empty text; then what `echo` repeats."""
        request, context = self.request, self.context
        prompt_ids = result.prompt_token_ids if request.return_token_ids else None
        prompt_text = result.prompt if request.return_prompt_text else None
        for i in range(self.num_choices):
            delta = DeltaMessage(role=context.role, content="")
            yield self._of(i, delta, prompt_token_ids=prompt_ids, prompt_text=prompt_text)
        repeated = last_message_of(context.conversation, context.role) if request.echo else ""
        if repeated:
            for i in range(self.num_choices):
                yield self._of(i, DeltaMessage(content=repeated))

    def _of(self, i: int, delta: DeltaMessage, **further: Any) -> Event:
        choice = ChatCompletionResponseStreamChoice(index=i, delta=delta, logprobs=None, finish_reason=None)
        return self.event([choice], **further, **self._usage_now(i))

    def _usage_now(self, i: int) -> dict[str, Any]:
        if not self.continuous_usage:
            return {}
        return {"usage": self.serving._usage(self.num_prompt_tokens, self.num_tokens[i])}

    def _event_of(self, output: CompletionOutput, result: RequestOutput) -> Event | None:
        i, request = output.index, self.request
        if not output.text and not output.token_ids and not self.num_tokens[i] and output.finish_reason is None:
            return None
        maker = self.makers[i]
        logprobs = maker.with_held(self.serving.logprobs_of(request, output))
        delta = maker.take(output.text, list(output.token_ids), result.prompt_token_ids)
        self.num_tokens[i] += len(output.token_ids)
        self.serving._log_output(self.context, output.text, output, True, True)
        ended = output.finish_reason
        if delta is None and ended is None and not request.return_token_ids:
            maker.hold(logprobs)
            return None
        token_ids = list(output.token_ids) if request.return_token_ids else None
        if ended is None:
            choice = ChatCompletionResponseStreamChoice(
                index=i, delta=maker.shown(delta), logprobs=logprobs, finish_reason=None, token_ids=token_ids
            )
            return self.event([choice], **self._usage_now(i))
        self.serving._raise_if_error(output, self.context.request_id)
        self.ended[i] = True
        reason, delta = maker.finish(delta, ended)
        choice = ChatCompletionResponseStreamChoice(
            index=i,
            delta=maker.shown(delta),
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=output.stop_reason,
            token_ids=token_ids,
        )
        further, fingerprint = self._usage_now(i), self.serving.options.system_fingerprint
        if not self.include_usage and fingerprint is not None:
            further["system_fingerprint"] = fingerprint
        self.serving._log_output(self.context, maker.text, output, True)
        return self.event([choice], **further)

    def final_usage(self) -> Any:
        """All choices together."""
        return self.serving._usage(self.num_prompt_tokens, sum(self.num_tokens), self.num_cached)
