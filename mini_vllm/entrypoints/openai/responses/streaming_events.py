"""A chat's stream as a response's: items that begin, grow and end. Upstream twin:
`vllm/entrypoints/openai/responses/streaming_events.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponseStreamChoice
from mini_vllm.entrypoints.openai.engine.protocol import DeltaToolCall
from mini_vllm.entrypoints.openai.responses.protocol import Item
from mini_vllm.entrypoints.openai.responses.utils import function_call_item, message_item, reasoning_item, text_part
from mini_vllm.utils import random_uuid

Event = dict[str, Any]


@dataclass
class OpenItem:
    """The item that grows now."""

    kind: str
    item_id: str
    text: str = ""
    name: str = ""
    call_id: str = ""


class ItemStream:
    """One item at a time: a piece of another kind, or of another call, ends it. Events are numbered as they go out."""

    def __init__(self) -> None:
        self.number = 0
        self.output_index = 0
        self.open: OpenItem | None = None
        self.items: list[Item] = []
        self.logprobs: list[Item] = []

    def sse(self, event: Event) -> str:
        """The event as text, with its number."""
        event["sequence_number"], self.number = self.number, self.number + 1
        event["type"] = event.pop("type")
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"

    def take(self, choice: ChatCompletionResponseStreamChoice) -> Iterator[Event]:
        """The events of one chunk of the chat's stream."""
        if choice.delta.reasoning:
            yield from self._piece("reasoning", choice.delta.reasoning)
        if choice.delta.content:
            found = [] if choice.logprobs is None else logprobs_of(choice.logprobs)
            self.logprobs += found
            yield from self._piece("message", choice.delta.content, found)
        for call in choice.delta.tool_calls:
            yield from self._call(call)

    def end(self) -> Iterator[Event]:
        """The last item ends."""
        yield from self._stop()

    def _at(self, kind: str, **fields: Any) -> Event:
        assert self.open is not None
        place = {"item_id": self.open.item_id, "output_index": self.output_index}
        return {**({} if "call" in kind else {"content_index": 0}), **fields, **place, "type": kind}

    def _item_event(self, kind: str, item: Item) -> Event:
        return {"item": item, "output_index": self.output_index, "type": kind}

    def _piece(self, kind: str, piece: str, logprobs: list[Item] | None = None) -> Iterator[Event]:
        if self.open is None or self.open.kind != kind:
            yield from self._stop()
            self.open = OpenItem(kind, random_uuid())
            is_text = kind == "message"
            item = (message_item if is_text else reasoning_item)(self.open.item_id, None, "in_progress")
            yield self._item_event("response.output_item.added", item)
            part = text_part("", []) if is_text else {"text": "", "type": "reasoning_text"}
            yield self._at(f"response.{'content' if is_text else 'reasoning'}_part.added", part=part)
        self.open.text += piece
        if kind == "message":
            yield self._at("response.output_text.delta", delta=piece, logprobs=logprobs or [])
        else:
            yield self._at("response.reasoning_text.delta", delta=piece)

    def _call(self, call: DeltaToolCall) -> Iterator[Event]:
        name = call.function.name if call.function else None
        arguments = call.function.arguments if call.function else None
        if call.id is not None and name is not None:
            yield from self._stop()
            self.open = OpenItem("function_call", random_uuid(), name=name, call_id=call.id)
            item = function_call_item(self.open.item_id, call.id, name, "", "in_progress")
            yield self._item_event("response.output_item.added", item)
        if arguments and self.open is not None and self.open.kind == "function_call":
            self.open.text += arguments
            yield self._at("response.function_call_arguments.delta", delta=arguments)

    def _stop(self) -> Iterator[Event]:
        if self.open is None:
            return
        text, item_id = self.open.text, self.open.item_id
        if self.open.kind == "message":
            part = text_part(text, None)
            yield self._at("response.output_text.done", logprobs=[], text=text)
            yield self._at("response.content_part.done", part=part)
            item = message_item(item_id, text, "completed", self.logprobs or None)
        elif self.open.kind == "reasoning":
            yield self._at("response.reasoning_text.done", text=text)
            yield self._at("response.reasoning_part.done", part={"text": text, "type": "reasoning_text"})
            item = reasoning_item(item_id, text, "completed")
        else:
            yield self._at("response.function_call_arguments.done", arguments=text, name=self.open.name)
            item = function_call_item(item_id, self.open.call_id, self.open.name, text, "completed")
        yield self._item_event("response.output_item.done", item)
        self.items.append(item)
        self.open = None
        self.output_index += 1


def logprobs_of(logprobs: Any) -> list[Item]:
    """A chat's log-probabilities in the form of a response."""
    names = ("token", "bytes", "logprob")
    return [
        {**{name: getattr(entry, name) for name in names},
         "top_logprobs": [{name: getattr(each, name) for name in names} for each in entry.top_logprobs]}
        for entry in logprobs.content or ()
    ]  # fmt: skip
