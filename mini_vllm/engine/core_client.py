"""The front end's way to a core, wherever it runs. Upstream twin: `vllm/v1/engine/core_client.py`.

    InprocClient        the core is an object here; a step runs in the caller: `LLMEngine` by default
    AsyncInprocClient   the same in a thread of its own: `AsyncLLM` by default
    SyncMPClient        the core has a process of its own: `LLMEngine(enable_multiprocessing=True)`
    AsyncMPClient       the same for `AsyncLLM`; the last two stand in `mp_client.py`

Upstream's default is a process of its own, and its `AsyncLLM` knows nothing else. Here it is the process that you are
in, so that a debugger can stand in the core.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mini_vllm.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreReadyResponse, EngineCoreRequest
from mini_vllm.engine.core import EngineCore


class EngineCoreClient(ABC):
    """What `LLMEngine` can ask of a core; `…_async` is what `AsyncLLM` asks.

    Attributes:
        ready: what the core said of itself when it was made.
        engine_core: the core itself where it is in this process, else None.

    Upstream: upstream/vllm/v1/engine/core_client.py:70 — `EngineCoreClient`.
    """

    ready: EngineCoreReadyResponse
    engine_core: EngineCore | None = None

    @abstractmethod
    def shutdown(self) -> None:
        """End the core; a second call does nothing."""

    def get_output(self) -> EngineCoreOutputs:
        """What the next step gave; nothing where no request is unfinished. Raises what the step raised."""
        raise NotImplementedError

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a checked request."""
        raise NotImplementedError

    def abort_requests(self, request_ids: list[str]) -> None:
        """End these requests; unknown ids are passed over."""
        raise NotImplementedError

    def has_request(self, request_id: str) -> bool:
        """True while the core may still have something to say of this request."""
        raise NotImplementedError

    def call_utility(self, method: str, *args: Any) -> Any:
        """Call a method of the core by its name. Raises what it raised."""
        raise NotImplementedError

    def check_fits(self, num_prompt_tokens: int, max_tokens: int | None) -> None:
        """Raise ValueError if a request of this size could never be finished."""
        if not self.ready.fits_any:
            self.call_utility("check_fits", num_prompt_tokens, max_tokens)

    def check_health(self, timeout: float) -> None:
        """Raise `EngineDeadError` if the core is gone, `TimeoutError` if it gives no sign of life in `timeout` s."""
        raise NotImplementedError

    async def get_output_async(self) -> EngineCoreOutputs:
        """Wait for the next step's outputs. Raises what ended the core."""
        raise NotImplementedError

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """As `add_request`."""
        raise NotImplementedError

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """As `abort_requests`."""
        raise NotImplementedError

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """As `call_utility`."""
        raise NotImplementedError

    async def check_health_async(self, timeout: float) -> None:
        """As `check_health`."""
        raise NotImplementedError

    def drop_stale(self, outputs: list[EngineCoreOutput], num_inputs: int) -> list[EngineCoreOutput]:
        """Without those of requests that were aborted after the core had made them: their ids may be in use again."""
        return outputs


class InprocClient(EngineCoreClient):
    """The core as an object. Requests and outputs are handed over as they are, nothing is encoded.

    Upstream: upstream/vllm/v1/engine/core_client.py:275 — `InprocClient`.
    """

    engine_core: EngineCore

    def __init__(self, engine_core: EngineCore) -> None:
        self.engine_core = engine_core
        self.ready = engine_core.ready_response()

    def get_output(self) -> EngineCoreOutputs:
        """Make one step."""
        return EngineCoreOutputs(self.engine_core.step_fn(), time.monotonic())

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue it in the scheduler."""
        core = self.engine_core
        core.add_request(core.preprocess_add_request(request))

    def abort_requests(self, request_ids: list[str]) -> None:
        """End them in the scheduler."""
        if request_ids:
            self.engine_core.abort_requests(request_ids)

    def has_request(self, request_id: str) -> bool:
        """True while the scheduler knows it."""
        return request_id in self.engine_core.scheduler.requests

    def call_utility(self, method: str, *args: Any) -> Any:
        """Call it."""
        return getattr(self.engine_core, method)(*args)

    def check_health(self, timeout: float) -> None:
        """Whoever can ask is in the same process: it lives."""

    def shutdown(self) -> None:
        """End what the core started."""
        self.engine_core.shutdown()


class AsyncInprocClient(InprocClient):
    """The core as an object, in a thread of its own: whatever touches it runs there, one thing after the other.

    So the event loop goes on while the model computes, and nothing needs a lock. A step holds Python's own lock except
    inside numpy; a front end that has much to do is better off with a core in a process of its own. Upstream has no
    such client: upstream/vllm/v1/engine/core_client.py:89 — "TODO: support this for debugging purposes."
    """

    def __init__(self, engine_core: EngineCore) -> None:
        super().__init__(engine_core)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="EngineCore")
        self._work: asyncio.Event | None = None
        self._aborted = AbortedRequests()
        self._num_heard = 0

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

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


class AbortedRequests:
    """Tells outputs that were on their way when their request was aborted from those of a later one of the same id.

    The front end counts its messages to the core, and the core says with each step how many it had heard. Upstream
    makes the ids themselves unique: upstream/vllm/v1/engine/input_processor.py:215 — `assign_request_id`.
    """

    def __init__(self) -> None:
        self.num_sent = 0
        self._at: dict[str, int] = {}

    def note(self, request_ids: list[str]) -> None:
        """The next message aborts these."""
        self.num_sent += 1
        self._at.update(dict.fromkeys(request_ids, self.num_sent))

    def drop_stale(self, outputs: list[EngineCoreOutput], num_inputs: int) -> list[EngineCoreOutput]:
        """What is left of a step before which the core had heard `num_inputs` messages."""
        if not self._at:
            return outputs
        self._at = {request_id: number for request_id, number in self._at.items() if number > num_inputs}
        return [output for output in outputs if output.request_id not in self._at]
