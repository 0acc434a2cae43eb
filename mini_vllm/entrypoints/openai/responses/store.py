"""What becomes of responses that are kept: looked up, gone on from, made in the background, cancelled.

Upstream has dicts that are never emptied: upstream/vllm/entrypoints/openai/responses/serving.py:238 — `response_store`,
:244 — `msg_store`, :249 — `event_store`, :253 — `background_tasks`. Here the oldest ones go when there are too many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.entrypoints.openai.responses.protocol import ResponsesResponse

MAX_KEPT = 10_000
_RUNNING = ("queued", "in_progress")


class EventLog:
    """The events of a stream as they come, for any number of readers from any place."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.closed = False
        self._news = asyncio.Event()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def fill(self, stream: AsyncGenerator[str, None]) -> None:
        """Take all events of a stream."""
        try:
            async for event in stream:
                self.events.append(event)
                self._tell()
        finally:
            self.closed = True
            self._tell()

    async def read(self, starting_after: int | None = None) -> AsyncGenerator[str, None]:
        """Events behind the one with this number; ends when the stream has ended.

        Upstream: upstream/vllm/entrypoints/openai/responses/serving.py:1276 — `responses_background_stream_generator`,
        which waits for ever where a stream has ended in an error.
        """
        at = 0 if starting_after is None else max(starting_after + 1, 0)
        while True:
            while at < len(self.events):
                yield self.events[at]
                at += 1
            if self.closed:
                return
            await self._news.wait()


@dataclass
class Kept:
    """One response, and what others need to go on from it.

    Attributes:
        response: None until there is one: a stream that nobody waits for in the background.
        messages: the conversation that it answers.
        log, task: of one that is made in the background.
    """

    response: ResponsesResponse | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    log: EventLog | None = None
    task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """It can still be cancelled."""
        return self.response is not None and self.response.status in _RUNNING


class ResponseStore:
    """Responses by their ids, in the memory of this process."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self.max_kept = max_kept
        self._kept: dict[str, Kept] = {}

    def find(self, response_id: str) -> Kept | None:
        """One that there is."""
        found = self._kept.get(response_id)
        return found if found is not None and found.response is not None else None

    def open(self, response_id: str, messages: list[dict[str, Any]]) -> Kept:
        """A place for one that is being made. Old ones go, but none that is still made in the background."""
        if len(self._kept) >= self.max_kept:
            old = next((each for each, kept in self._kept.items() if kept.task is None or kept.task.done()), None)
            if old is not None:
                del self._kept[old]
        kept = self._kept[response_id] = Kept(messages=messages)
        return kept

    def keep(self, response: ResponsesResponse) -> None:
        """Enter a response, unless it has been cancelled meanwhile, or nobody wants it kept."""
        kept = self._kept.get(response.id)
        if kept is not None and (kept.response is None or kept.response.status != "cancelled"):
            kept.response = response

    def run(self, response: ResponsesResponse, work: Coroutine[Any, Any, bool]) -> None:
        """Do the work in the background; it says whether there is a response then, else this one has failed."""
        kept = self._kept[response.id]
        kept.response = response

        async def watched() -> None:
            done = False
            try:
                done = await work
            finally:
                if not done and kept.running and kept.response is not None:
                    kept.response.status = "failed"

        kept.task = asyncio.create_task(watched(), name=f"create_{response.id}")

    async def cancel(self, kept: Kept) -> None:
        """End one that is `running`; when this returns, its request has left the engine."""
        assert kept.response is not None
        kept.response.status = "cancelled"
        if kept.task is not None:
            kept.task.cancel()
            await asyncio.wait([kept.task])
