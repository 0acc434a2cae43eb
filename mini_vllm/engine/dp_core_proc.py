"""One of several replicas, in a process of its own. Upstream twin: `vllm/v1/engine/core.py` — `DPEngineCoreProc`."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from mini_vllm.engine import EngineCoreRequest, EngineCoreRequestType
from mini_vllm.engine.coordinator_links import COUNTS, START_WAVE, WAVE_COMPLETE, ReplicaLink
from mini_vllm.engine.core_proc import EngineCoreProc
from mini_vllm.engine.core_wire import Wire
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.utils import CoreSetup

STEPS_BETWEEN_SYNCS = 32
"""Steps of a wave from one question whether anybody has work to the next."""


class DPEngineCoreProc(EngineCoreProc):
    """A core that tells the coordinator how many requests wait and run in it; and, where replicas share experts, one
    that steps as long as any of them has work.

    Upstream's is for mixtures alone. Its dense replicas are plain `EngineCoreProc`s, which tell nobody: there the
    router sees its own sends, and every 5 seconds a table of zeros.

    Attributes:
        engines_running: a wave runs. current_wave: its number, or that of the next one. step_counter: steps since it
            began. dp_group: None: the replicas share nothing, and there are no waves.

    Upstream: upstream/vllm/v1/engine/core.py:1652 — `DPEngineCoreProc`.
    """

    def __init__(self, wire: Wire, setup: CoreSetup) -> None:
        super().__init__(wire, setup)
        assert setup.coordinator is not None
        self.dp_rank, self.dp_group = setup.config.data_parallel_rank, self.parts.dp_group
        self.link = ReplicaLink(wire.context, setup.coordinator, self.dp_rank)
        self.last_counts = (0, 0)
        self.engines_running, self.current_wave, self.step_counter = False, 0, 0
        threading.Thread(target=self.link.hear, args=(self._put_wave,), daemon=True, name="coordinator").start()

    @staticmethod
    def _parts(setup: CoreSetup) -> EngineParts:
        parts = EngineCoreProc._parts(setup)
        return parts if setup.dp_group is None else replace(parts, dp_group=setup.dp_group.open())

    def _put_wave(self, content: Any) -> None:
        self.input_queue.put((EngineCoreRequestType.START_DP_WAVE, content, -1))

    def has_work(self) -> bool:
        """True also while another replica may have some."""
        return self.engines_running or super().has_work()

    def run_busy_loop(self) -> None:
        """As that of one core; counts go out before and after a step, and a step is taken with the others.

        Upstream: upstream/vllm/v1/engine/core.py:1819 — `DPEngineCoreProc.run_busy_loop`.
        """
        while self._process_input_queue():
            self._maybe_publish_request_counts()
            num_steps = self.num_steps
            outputs = self.step_fn()
            if outputs:
                self.wire.send_step(outputs, time.monotonic())
            self._maybe_publish_request_counts()
            if self.dp_group is not None:
                self._step_with_others(executed=self.num_steps > num_steps)

    def _step_with_others(self, executed: bool) -> None:
        """The part of a step that is for the others: a dummy where nothing was computed, and the end of the wave."""
        unfinished = self.scheduler.has_unfinished_requests()
        if not executed:
            if not unfinished and not self.engines_running:
                return
            self.model_executor.execute_dummy_batch()
        self.engines_running = self._has_global_unfinished_reqs(unfinished)
        if not self.engines_running:
            if self.dp_rank == 0:
                self.link.tell(WAVE_COMPLETE, self.current_wave)
            self.current_wave += 1
            self.step_counter = 0

    def _has_global_unfinished_reqs(self, local_unfinished: bool) -> bool:
        """Whether any replica has requests; asked in every 32nd step, and taken for true between.

        Upstream: upstream/vllm/v1/engine/core.py:1877 — `DPEngineCoreProc._has_global_unfinished_reqs`.
        """
        self.step_counter += 1
        if self.step_counter % STEPS_BETWEEN_SYNCS:
            return True
        return bool(self.dp_group.all_reduce(np.array([local_unfinished], np.int64))[0])

    def _add_requests(self, requests: list[EngineCoreRequest]) -> None:
        """As that of one core. A request that was sent in a wave that has ended starts the next one.

        Upstream: upstream/vllm/v1/engine/core.py:1739 — `DPEngineCoreProc.add_request`.
        """
        super()._add_requests(requests)
        for request in requests if self.dp_group is not None else ():
            if request.current_wave > self.current_wave:
                self.current_wave = request.current_wave
            elif request.current_wave < self.current_wave and not self.engines_running:
                self.engines_running = True
                self.link.tell(START_WAVE, self.current_wave)

    def _handle_client_request(self, request_type: EngineCoreRequestType, content: Any, client: int) -> None:
        """Upstream: upstream/vllm/v1/engine/core.py:1786 — `DPEngineCoreProc._handle_client_request`."""
        if request_type is not EngineCoreRequestType.START_DP_WAVE:
            return super()._handle_client_request(request_type, content, client)
        new_wave, exclude = content
        if self.dp_group is not None and exclude != self.dp_rank and new_wave >= self.current_wave:
            self.current_wave, self.engines_running = new_wave, True

    def _maybe_publish_request_counts(self) -> None:
        """Upstream: upstream/vllm/v1/engine/core.py:1806 — `_maybe_publish_request_counts`."""
        counts = self.scheduler.table.num_waiting, len(self.scheduler.running)
        if counts != self.last_counts:
            self.last_counts = counts
            self.link.tell(COUNTS, *counts, self.current_wave, self.step_counter)

    def shutdown(self) -> None:
        """As that of one core."""
        self.link.close()
        super().shutdown()
