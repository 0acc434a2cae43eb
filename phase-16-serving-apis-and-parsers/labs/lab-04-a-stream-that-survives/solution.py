"""Lab 16-04: a stream that survives slow readers, cut wires and clients that come back.

The engine makes tokens at its speed, clients read at theirs, and between them is a wire that cuts bytes anywhere and
breaks. There are no threads here: `StreamHub.pump` is one step of the engine.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from mini_vllm import LLMEngine, RequestOutput, RequestOutputKind, SamplingParams


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
    return 21


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
        self.max_bytes = max_bytes
        self._line, self._size, self._after_cr = bytearray(), 0, False
        self._data: list[str] = []
        self._id = ""

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """The events that this chunk completes: (the last id, the data).

        Bytes that are no UTF-8 become U+FFFD.
        """
        events: list[tuple[str, str]] = []
        for byte in chunk:
            newline_of_pair = byte == 10 and self._after_cr
            self._after_cr = byte == 13
            if newline_of_pair:
                continue
            if byte not in (10, 13):
                self._line.append(byte)
                self._size += 1
                if self._size > self.max_bytes:
                    self._line.clear()
                    self._data.clear()
                    raise ValueError(f"an event of more than {self.max_bytes} bytes")
            elif self._line:
                self._end_line()
            else:
                if self._data:
                    events.append((self._id, "\n".join(self._data)))
                self._data, self._size = [], 0
        return events

    def _end_line(self) -> None:
        name, _, value = self._line.decode("utf-8", "replace").partition(":")
        value = value[1:] if value.startswith(" ") else value
        self._line.clear()
        if name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value


@dataclass
class _Answer:
    """One request of the engine, and who reads it."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    key: str | None
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    readers: int = 0
    alone: int = 0  # steps without a reader


class Stream:
    """One reader of one answer. Comes from `StreamHub.open`; what it needs to be made is your business."""

    def _reads(self, hub: StreamHub, answer: _Answer, offset: int) -> Stream:
        """This stream, as a reader of an answer from its token `offset` on."""
        self._hub, self._answer, self._offset = hub, answer, offset
        self._closed, self._told = False, False
        answer.readers += 1
        return self

    @property
    def pending(self) -> int:
        """Events that `read` would give: 0 or 1, however slow the reader is."""
        new = len(self._answer.tokens) > self._offset or (self._answer.finish_reason is not None and not self._told)
        return int(new and not self._closed)

    @property
    def finished(self) -> bool:
        """Whether the finish reason has been read."""
        return self._told

    def read(self) -> Event | None:
        """All that is new for this reader, in one event; None where nothing is, and behind `close`."""
        if not self.pending:
            return None
        answer = self._answer
        new = tuple(answer.tokens[self._offset :])
        self._offset += len(new)
        self._told = answer.finish_reason is not None
        return Event(str(self._offset), new, answer.finish_reason)

    def close(self) -> None:
        """This reader has left. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._answer.readers -= 1
            self._hub._left(self._answer)


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
        self._engine, self._grace, self._max_keys = engine, grace_steps, max_keys
        self._running: dict[str, _Answer] = {}
        self._by_key: dict[str, _Answer] = {}
        self._count = 0

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
        offset = 0
        if last_event_id is not None:
            if key is None or not (last_event_id.isascii() and last_event_id.isdigit()):
                raise ValueError(f"last_event_id {last_event_id!r} is of no event")
            offset = int(last_event_id)
        answer = self._by_key.get(key) if key is not None else None
        if answer is not None and (answer.prompt, answer.params) != (list(prompt_token_ids), params):
            raise ValueError(f"Idempotency-Key {key!r} was used with another request")
        known = params.max_tokens if answer is None else len(answer.tokens)  # of one that begins anew nobody knows more
        if known is not None and offset > known:
            raise ValueError(f"last_event_id {last_event_id!r} is of no event")
        if answer is None:
            answer = self._start(list(prompt_token_ids), copy.deepcopy(params), key)
        elif key is not None:
            self._by_key[key] = self._by_key.pop(key)
        answer.alone = 0
        return Stream()._reads(self, answer, offset)

    def _start(self, prompt: list[int], params: SamplingParams, key: str | None) -> _Answer:
        answer = _Answer(f"hub-{self._count}", prompt, params, key)
        self._count += 1
        self._engine.add_request(
            answer.request_id,
            {"prompt_token_ids": list(prompt)},
            copy.deepcopy(params),
            output_kind=RequestOutputKind.DELTA,
        )
        self._running[answer.request_id] = answer
        if key is not None:
            self._by_key[key] = answer
        return answer

    def pump(self) -> bool:
        """One step of the engine, if it has work. True while there is more."""
        if self._engine.has_unfinished_requests():
            for output in self._engine.step():
                self._take(output)
        for answer in list(self._running.values()):
            if not answer.readers:
                answer.alone += 1
                if answer.alone > self._grace:
                    self._abort(answer)
        return self._engine.has_unfinished_requests()

    def _take(self, output: RequestOutput) -> None:
        answer, completion = self._running[output.request_id], output.outputs[0]
        answer.tokens.extend(completion.token_ids)
        if completion.finish_reason is not None:
            answer.finish_reason = completion.finish_reason
            del self._running[answer.request_id]
            self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        finished = [key for key, answer in self._by_key.items() if answer.finish_reason is not None]
        for key in finished[: max(0, len(finished) - self._max_keys)]:
            del self._by_key[key]

    def _left(self, answer: _Answer) -> None:
        if not answer.readers and answer.key is None and answer.finish_reason is None:
            self._abort(answer)

    def _abort(self, answer: _Answer) -> None:
        self._engine.abort_request(answer.request_id)
        del self._running[answer.request_id]
        if answer.key is not None:
            del self._by_key[answer.key]
