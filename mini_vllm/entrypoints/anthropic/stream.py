"""A chat's stream in Anthropic's form: blocks that begin, grow and end.

Upstream: upstream/vllm/entrypoints/anthropic/serving.py:511 — `message_stream_converter`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Literal

from mini_vllm.entrypoints.anthropic.protocol import (
    AnthropicContentBlock,
    AnthropicDelta,
    AnthropicError,
    AnthropicMessagesResponse,
    AnthropicStreamEvent,
    AnthropicUsage,
    StopReason,
)
from mini_vllm.entrypoints.openai.chat_completion.serving import ChatContext, OpenAIServingChat
from mini_vllm.entrypoints.openai.chat_completion.stream import Event, StreamState
from mini_vllm.entrypoints.openai.engine.protocol import DeltaToolCall, GenerationError
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
STOP_REASONS: dict[str, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def message_stream_generator(serving: OpenAIServingChat, context: ChatContext) -> AsyncGenerator[str, None]:
    """Events, an error among them if one comes."""
    try:
        state = StreamState(serving, context)
        blocks = BlockStream(context)
        async with aclosing(context.outputs) as outputs:
            async for result in outputs:
                for chunk in state.take(result):
                    for event in blocks.take(chunk):
                        yield _sse(event)
        for event in blocks.end(state.final_usage()):
            yield _sse(event)
        context.metadata.final_usage_info = state.final_usage()
    except Exception as error:
        if not isinstance(error, GenerationError):
            logger.exception("Error in message stream converter.")
        told = AnthropicError(type="internal_error", message=str(error))
        yield _sse(AnthropicStreamEvent(type="error", error=told))


def _sse(event: AnthropicStreamEvent) -> str:
    return f"event: {event.type}\ndata: {event.model_dump_json(exclude_unset=True)}\n\n"


class BlockStream:
    """Which block is open. One at a time: a piece of another kind, or of another call, ends it."""

    def __init__(self, context: ChatContext) -> None:
        self.context = context
        self.begun = False
        self.index = 0
        self.open: AnthropicContentBlock | None = None
        self.finish_reason = "stop"
        self.call_ids: dict[int, str] = {}

    def take(self, chunk: Event) -> Iterator[AnthropicStreamEvent]:
        """The events of one chunk of the chat's stream."""
        if not self.begun:
            self.begun = True
            yield self._message_start(chunk)
            return
        (choice,) = chunk.choices
        self.finish_reason = choice.finish_reason or self.finish_reason
        if choice.delta.reasoning:
            yield from self._piece("thinking", choice.delta.reasoning)
        if choice.delta.content:
            yield from self._piece("text", choice.delta.content)
        for call in choice.delta.tool_calls:
            yield from self._call(call)

    def end(self, usage: Any) -> Iterator[AnthropicStreamEvent]:
        """The last block ends, then the message."""
        yield from self._stop()
        reason = STOP_REASONS.get(self.finish_reason)
        counted = AnthropicUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
        yield AnthropicStreamEvent(type="message_delta", delta=AnthropicDelta(stop_reason=reason), usage=counted)
        yield AnthropicStreamEvent(type="message_stop")

    def _message_start(self, chunk: Event) -> AnthropicStreamEvent:
        tokens = chunk.usage.prompt_tokens if chunk.usage else 0
        message = AnthropicMessagesResponse(
            id=chunk.id,
            content=[],
            model=chunk.model,
            stop_reason=None,
            stop_sequence=None,
            usage=AnthropicUsage(input_tokens=tokens, output_tokens=0),
        )
        return AnthropicStreamEvent(type="message_start", message=message)

    def _piece(self, kind: Literal["text", "thinking"], piece: str) -> Iterator[AnthropicStreamEvent]:
        if self.open is None or self.open.type != kind:
            yield from self._start(AnthropicContentBlock.model_validate({"type": kind, kind: ""}))
        yield self._delta(AnthropicDelta.model_validate({"type": f"{kind}_delta", kind: piece}))

    def _call(self, call: DeltaToolCall) -> Iterator[AnthropicStreamEvent]:
        name = call.function.name if call.function else None
        arguments = call.function.arguments if call.function else None
        call_id = call.id or self.call_ids.get(call.index)
        if call.id is not None:
            self.call_ids[call.index] = call.id
            if name is not None and (self.open is None or self.open.id != call.id):
                yield from self._start(AnthropicContentBlock(type="tool_use", id=call.id, name=name, input={}))
        if arguments and self.open is not None and call_id is not None and self.open.id == call_id:
            yield self._delta(AnthropicDelta(type="input_json_delta", partial_json=arguments))

    def _start(self, block: AnthropicContentBlock) -> Iterator[AnthropicStreamEvent]:
        yield from self._stop()
        self.open = block
        yield AnthropicStreamEvent(index=self.index, type="content_block_start", content_block=block)

    def _delta(self, delta: AnthropicDelta) -> AnthropicStreamEvent:
        return AnthropicStreamEvent(index=self.index, type="content_block_delta", delta=delta)

    def _stop(self) -> Iterator[AnthropicStreamEvent]:
        if self.open is None:
            return
        if self.open.type == "thinking":  # nobody checks it here; clients send it back
            yield self._delta(AnthropicDelta(type="signature_delta", signature=uuid.uuid4().hex))
        yield AnthropicStreamEvent(index=self.index, type="content_block_stop")
        self.open = None
        self.index += 1
