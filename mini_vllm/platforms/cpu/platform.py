"""The platform that is always there: numpy on this machine's processors. Upstream twin: `vllm/platforms/cpu.py`."""

from __future__ import annotations

from typing import Any, ClassVar

from mini_vllm.platforms.interface import Platform
from mini_vllm.utils.mem_utils import memory_for_kv_cache, resident_memory


class CpuPlatform(Platform):
    """Upstream: upstream/vllm/platforms/cpu.py:41 — `CpuPlatform`."""

    device_name: ClassVar[str] = "cpu"
    device_type: ClassVar[str] = "cpu"

    def get_worker_cls(self) -> type[Any]:
        """`Worker`."""
        from mini_vllm.worker.worker import Worker

        return Worker

    def memory_for_kv_cache(self, share: float, workers: Any) -> int | None:
        """What weights and all else that the ranks' processes hold leave of that share of the machine's memory."""
        return memory_for_kv_cache(share, sum(workers(resident_memory)))
