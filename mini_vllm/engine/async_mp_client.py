"""`AsyncLLM`'s client of a core in a process of its own.

Upstream twin: upstream/vllm/v1/engine/core_client.py:919 — `AsyncMPClient`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from mini_vllm.engine import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from mini_vllm.engine.exceptions import EngineDeadError
from mini_vllm.engine.mp_client import PING, SILENCE_S, MPClient
from mini_vllm.engine.shared_core import SharedCore
from mini_vllm.engine.utils import CoreSetup


class AsyncMPClient(MPClient):
    """Requests are sent at once; the event loop reads whenever the socket has something.

    It belongs to the event loop in which it is first used; an `AsyncLLM` that is made in one reads from then on.

    Args:
        inbox: takes by `put_nowait` what comes, for whoever reads from several cores; None: `get_output_async` reads.
    """

    def __init__(self, setup: CoreSetup, link: SharedCore | None = None, inbox: Any = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: Any = asyncio.Queue() if inbox is None else inbox
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False
        super().__init__(setup, link=link)

    def listen(self) -> None:
        """Read from now on, in this event loop."""
        self.ensure_alive()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._descriptor = self._output.getsockopt(self._zmq.FD)
            loop.add_reader(self._descriptor, self._read)
            self._tick()
        elif self._loop is not loop:
            raise RuntimeError("this engine belongs to another event loop: make one in each loop")

    def _read(self) -> None:
        """Take all that is there: the descriptor only says that something came, not that more is left."""
        try:
            while True:
                outputs = self._take(self._output.recv_multipart(self._zmq.NOBLOCK))
                self._heard = True
                if outputs is not None:
                    self._queue.put_nowait(outputs)
        except self._zmq.Again:
            pass
        except Exception as error:
            self._stop(error)

    def _tick(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(SILENCE_S, self._tick)
        self._heard = False
        self._read()
        if not self._heard and self.dead_error is None:
            try:
                self._on_silence(SILENCE_S)
            except Exception as error:
                self._stop(error)

    def _stop(self, error: BaseException) -> None:
        assert self._loop is not None and self._timer is not None
        self._timer.cancel()
        self._loop.remove_reader(self._descriptor)
        self._queue.put_nowait(error)

    def find_death(self) -> BaseException | None:
        """While no event loop reads, nothing has been asked of the core: what comes is its last word, or none."""
        if self._loop is None and self.dead_error is None and self.resources.owner.refusal is None:
            with contextlib.suppress(self._zmq.ZMQError, EngineDeadError):
                while True:
                    self._take(self._output.recv_multipart(self._zmq.NOBLOCK))
        return self.dead_error

    async def get_output_async(self) -> EngineCoreOutputs:
        """Wait for a step that has something to say."""
        self.ensure_alive()
        self.listen()
        found = await self._queue.get()
        if isinstance(found, BaseException):
            raise found
        return self.hand_on(found)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Send it."""
        self.listen()
        self._send(EngineCoreRequestType.ADD, self._encode_request(request))
        self._aborted.num_sent += 1

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Send an abort, if the core lives."""
        known = [request_id for request_id in request_ids if request_id in self._in_flight]
        if known and self.dead_error is None:
            self._send(EngineCoreRequestType.ABORT, self._encoder.encode(known))
            self._aborted.note(known)
            self._in_flight.difference_update(known)

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """Send the call and wait for its answer."""
        self.listen()
        return await asyncio.wrap_future(self._send_utility(method, args))

    async def check_health_async(self, timeout: float) -> None:
        """Ask for a sign of life."""
        self.listen()
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._send_utility(PING, ())), timeout)
        except asyncio.TimeoutError:
            raise self._no_sign_of_life(timeout) from None

    def shutdown(self) -> None:
        """As `MPClient.shutdown`; whoever waits for outputs hears of it. From any thread; not in a forked child, whose
        copy of the event loop would take the owner's sockets from it."""
        if self.resources.owner.refusal is None:
            self.stop_listening()
            self._finalizer()

    def stop_listening(self) -> None:
        """The part of `shutdown` that the event loop has in it."""
        loop, error = self._loop, self._die("it was shut down")
        if loop is not None and not loop.is_closed() and self._finalizer.alive:
            if loop.is_running() and not _is_current(loop):
                done = threading.Event()
                loop.call_soon_threadsafe(self._stop, error)
                loop.call_soon_threadsafe(done.set)
                done.wait(5.0)
            else:
                self._stop(error)


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
