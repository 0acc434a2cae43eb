"""The front end's way to a core, wherever it runs. Upstream twin: `vllm/v1/engine/core_client.py`.

    InprocClient        the core is an object here; a step runs in the caller      `LLMEngine` by default
    AsyncInprocClient   the same in a thread of its own                            `AsyncLLM` by default
    SyncMPClient        the core has a process of its own                          `enable_multiprocessing=True`
    AsyncMPClient       the same in an event loop                                  the same for `AsyncLLM`

The last three stand in `async_inproc_client.py`, `sync_mp_client.py` and `async_mp_client.py`.

Upstream's default is a process of its own, and its `AsyncLLM` knows nothing else. Here it is the process that you are
in, so that a debugger can stand in the core.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from mini_vllm.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreReadyResponse, EngineCoreRequest
from mini_vllm.engine.core import EngineCore


class EngineCoreClient(ABC):
    """What `LLMEngine` can ask of a core; `…_async` is what `AsyncLLM` asks.

    Attributes:
        ready: what the core said of itself when it was made.
        engine_core: the core itself where it is in this process, else None. replica_metrics: of several replicas.

    Upstream: upstream/vllm/v1/engine/core_client.py:70 — `EngineCoreClient`.
    """

    ready: EngineCoreReadyResponse
    engine_core: EngineCore | None = None
    replica_metrics: Any = None

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

    def find_death(self) -> BaseException | None:
        """Why the core is gone, as far as it is known now; None where it lives, or is an object of this process."""
        return None

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

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: float) -> None:
        """So many replicas from now on. Raises ValueError where there is one core, and no router in front of it."""
        raise ValueError(f"new_data_parallel_size={new_data_parallel_size!r} needs data_parallel_size above 1, or Ray")

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
