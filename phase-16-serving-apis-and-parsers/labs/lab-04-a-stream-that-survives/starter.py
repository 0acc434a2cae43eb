"""Lab 16-04: a stream that survives slow readers, cut wires and clients that come back.

The engine makes tokens at its speed, clients read at theirs, and between them is a wire that cuts bytes anywhere and
breaks. There are no threads here: `StreamHub.pump` is one step of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm import LLMEngine, SamplingParams


@dataclass(frozen=True)
class Event:
    """What a reader gets at once. `id` is for `Last-Event-ID`; what it says is the hub's own business. Given."""

    id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None


def encode_event(event: Event) -> bytes:
    """One server-sent event: a line `id: …`, a line `data: …` with the rest as JSON, an empty line. Given."""
    data = json.dumps({"token_ids": event.token_ids, "finish_reason": event.finish_reason})
    return f"id: {event.id}\ndata: {data}\n\n".encode()


def predicted_doubled() -> int:
    """Your prediction, made before you run anything. A server sends an event for each token and numbers its events 1,
    2, 3, …; who comes back with `Last-Event-ID: 3` gets all tokens behind the third. Then somebody teaches it to merge:
    what a slow client has not read yet becomes one event. A client reads once in 8 steps, is lost after her third
    event, comes back, and reads the rest of 64 tokens. How many tokens does she see twice?
    """
    raise NotImplementedError("your prediction: how many tokens she sees twice")


class EventDecoder:
    """Server-sent events from bytes, however the wire cut them.

    A line ends in LF, CR or CR LF; an empty line ends an event. `data` lines of one event are joined by LF, an `id`
    stays until there is another one, comments (`: …`) and other fields are passed over, and one space behind the colon
    is no part of the value; a line without a colon is a field with an empty value. An event without a `data` line is
    none. One that the bytes have not finished is never given out, and each comes with the byte that completes it.

    Raises:
        ValueError: "an event of more than N bytes", as soon as one is, whatever its lines are; nothing further is kept.
    """

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        raise NotImplementedError("a decoder to which no byte has come yet")

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """The events that this chunk completes: (the last id, the data).

        Bytes that are no UTF-8 become U+FFFD.
        """
        raise NotImplementedError("the events that these bytes complete, each with the last id")


class Stream:
    """One reader of one answer. Comes from `StreamHub.open`; what it needs to be made is your business."""

    @property
    def pending(self) -> int:
        """Events that `read` would give: 0 or 1, however slow the reader is."""
        raise NotImplementedError("how many events a read would give: 0 or 1")

    @property
    def finished(self) -> bool:
        """Whether the finish reason has been read."""
        raise NotImplementedError("whether the finish reason has been read")

    def read(self) -> Event | None:
        """All that is new for this reader, in one event; None where nothing is, and behind `close`."""
        raise NotImplementedError("all that is new for this reader, in one event")

    def close(self) -> None:
        """This reader has left. A second call does nothing."""
        raise NotImplementedError("this reader has left")


class StreamHub:
    """Between an engine and its readers.

    A request may have a key (`Idempotency-Key`). Whoever opens the same request with the same key again, at the same
    time or later, gets the same answer: it is computed once. With `last_event_id` she gets what comes behind that
    event, and nothing twice. A key whose answer is finished is answered without the engine. Of finished answers the
    `max_keys` that were opened last are kept, and no more.

    When the last reader leaves an unfinished request without a key, its blocks are free after the next `pump`. With a
    key they are free after `grace_steps + 1` pumps at the latest, and who comes back before that has lost nothing, and
    the engine computes nothing twice. What happens in between, and what somebody finds who comes back later, is yours
    to decide, as long as she gets the whole answer.
    """

    def __init__(self, engine: LLMEngine, *, grace_steps: int = 8, max_keys: int = 64) -> None:
        raise NotImplementedError("a hub in front of an engine, without readers so far")

    def open(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        key: str | None = None,
        last_event_id: str | None = None,
    ) -> Stream:
        """A reader of this request's answer. The arguments are copied, and stay as they are.

        Raises:
            ValueError: "Idempotency-Key 'k' was used with another request" where prompt or params differ;
                "last_event_id 'x' is of no event" for one that this hub never gives, and without a key for any.
        """
        raise NotImplementedError("a reader of this request's answer, computed once for a key")

    def pump(self) -> bool:
        """One step of the engine, if it has work. True while there is more."""
        raise NotImplementedError("one step of the engine, and whether there is more to do")
