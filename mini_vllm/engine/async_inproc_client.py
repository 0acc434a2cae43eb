"""`AsyncLLM`'s client of a core in this process. In vLLM the core of an `AsyncLLM` always has a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mini_vllm.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from mini_vllm.engine.aborted_requests import AbortedRequests
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.core_client import InprocClient


class AsyncInprocClient(InprocClient):
    """The core as an object, in a thread of its own: whatever touches it runs there, one thing after the other.

    So the event loop goes on while the model computes, and nothing needs a lock. A step holds Python's own lock except
    inside numpy; a front end that has much to do is better off with a core in a process of its own. Upstream has no
    such client, but wants one: upstream/vllm/v1/engine/core_client.py:89 — "support this for debugging purposes."
    """

    def __init__(self, engine_core: EngineCore) -> None:
        super().__init__(engine_core)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="EngineCore")
        self._work: asyncio.Event | None = None
        self._aborted = AbortedRequests()
        self._num_heard = 0

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Its turn comes after what waits already. Whoever is cancelled meanwhile does not take it back: an abort whose
        sender is cancelled a second time, as a server does it, still reaches the core."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, function, *args))

    def _event(self) -> asyncio.Event:
        self._work = self._work or asyncio.Event()  # made in the loop that uses it
        return self._work

    def _step(self) -> tuple[EngineCoreOutputs, bool]:
        outputs = self.get_output()
        outputs.num_inputs = self._num_heard
        return outputs, self.engine_core.has_requests() or bool(self.engine_core.batch_queue)

    async def get_output_async(self) -> EngineCoreOutputs:
        """Steps until one of them has something to say."""
        event = self._event()
        while True:
            await event.wait()
            event.clear()  # before the step: a request that comes meanwhile sets it again
            outputs, busy = await self._run(self._step)
            if busy:
                event.set()
            if outputs.outputs:
                return outputs

    def _hear(self, function: Callable[..., Any], *args: Any) -> None:
        self._num_heard += 1
        function(*args)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Queue it between two steps. Raises what the scheduler raises."""
        self._aborted.num_sent += 1
        await self._run(self._hear, self.add_request, request)
        self._event().set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """End them between two steps."""
        if request_ids:
            self._aborted.note(request_ids)
            await self._run(self._hear, self.abort_requests, request_ids)
            self._event().set()

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """Call it between two steps."""
        return await self._run(self.call_utility, method, *args)

    async def check_health_async(self, timeout: float) -> None:
        """Whoever can ask is in the same process: it lives."""

    def drop_stale(self, outputs: list[EngineCoreOutput], num_inputs: int) -> list[EngineCoreOutput]:
        """See `AbortedRequests`."""
        return self._aborted.drop_stale(outputs, num_inputs)

    def shutdown(self) -> None:
        """Wait for the step under way, then end."""
        self._thread.shutdown(wait=True)
        super().shutdown()
