"""One of several replicas, in a process of its own. Upstream twin: `vllm/v1/engine/core.py` — `DPEngineCoreProc`."""

from __future__ import annotations

import threading
import time
from typing import Any

from mini_vllm.engine import EngineCoreRequestType
from mini_vllm.engine.coordinator_links import COUNTS, ReplicaLink
from mini_vllm.engine.core_proc import EngineCoreProc
from mini_vllm.engine.core_wire import Wire
from mini_vllm.engine.utils import CoreSetup


class DPEngineCoreProc(EngineCoreProc):
    """A core that tells the coordinator how many requests wait and run in it.

    Upstream's is for mixtures alone. Its dense replicas are plain `EngineCoreProc`s, which tell nobody: there the
    router sees its own sends, and every 5 seconds a table of zeros.

    Upstream: upstream/vllm/v1/engine/core.py:1652 — `DPEngineCoreProc`.
    """

    def __init__(self, wire: Wire, setup: CoreSetup) -> None:
        super().__init__(wire, setup)
        assert setup.coordinator is not None
        self.link = ReplicaLink(wire.context, setup.coordinator, setup.config.data_parallel_rank)
        self.last_counts = (0, 0)
        threading.Thread(target=self.link.hear, args=(self._put_wave,), daemon=True, name="coordinator").start()

    def _put_wave(self, content: Any) -> None:
        self.input_queue.put((EngineCoreRequestType.START_DP_WAVE, content, -1))

    def run_busy_loop(self) -> None:
        """As that of one core; counts go out before and after a step.

        Upstream: upstream/vllm/v1/engine/core.py:1819 — `DPEngineCoreProc.run_busy_loop`.
        """
        while self._process_input_queue():
            self._maybe_publish_request_counts()
            outputs = self.step_fn()
            if outputs:
                self.wire.send_step(outputs, time.monotonic())
            self._maybe_publish_request_counts()

    def _maybe_publish_request_counts(self) -> None:
        """Upstream: upstream/vllm/v1/engine/core.py:1806 — `_maybe_publish_request_counts`."""
        counts = self.scheduler.table.num_waiting, len(self.scheduler.running)
        if counts != self.last_counts:
            self.last_counts = counts
            self.link.tell(COUNTS, *counts, 0, 0)

    def shutdown(self) -> None:
        """As that of one core."""
        self.link.close()
        super().shutdown()
