"""Offloading to the host's memory. Upstream twin: `vllm/v1/kv_offload/cpu/spec.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mini_vllm.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingManager,
    OffloadingSpec,
)
from mini_vllm.kv_offload.cpu.common import CPULoadStoreSpec
from mini_vllm.kv_offload.cpu.gpu_worker import CpuGpuOffloadingHandlers
from mini_vllm.kv_offload.cpu.manager import CPUOffloadingManager
from mini_vllm.utils.checks import is_real, shown
from mini_vllm.utils.mem_utils import require_memory

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.kv_offload.worker.worker import OffloadingHandler


class CPUOffloadingSpec(OffloadingSpec):
    """Reads `kv_connector_extra_config`: `cpu_bytes_to_use`, of all ranks together; `eviction_policy`, "lru" or "arc";
    `store_threshold` and `max_tracker_size` (`CPUOffloadingManager`); `block_size` (`OffloadingSpec`).

    Attributes:
        num_blocks: places for offloaded blocks. cpu_page_size_per_worker: bytes of one in a rank.

    Raises:
        ValueError: a setting is not what it should be: `cpu_bytes_to_use` is missing, more than the machine has, or too
            little for a single block. The model has no keys and values.

    Upstream: upstream/vllm/v1/kv_offload/cpu/spec.py:21 — `CPUOffloadingSpec`; with no place at all it goes on.
    """

    known = frozenset(
        ("cpu_bytes_to_use", "eviction_policy", "store_threshold", "max_tracker_size", "block_size", "spec_name",
         "spec_module_path")
    )  # fmt: skip
    """Keys of `kv_connector_extra_config`."""

    def __init__(self, vllm_config: EngineConfig, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, kv_cache_config)
        unknown = sorted(set(self.extra_config) - self.known)
        if unknown:
            raise ValueError(
                f"kv_connector_extra_config: unknown key {unknown[0]!r}. Allowed: {', '.join(sorted(self.known))}"
            )
        size: Any = self.extra_config.get("cpu_bytes_to_use")
        if not is_real(size) or not 0 < size < float("inf"):
            raise ValueError(
                "cpu_bytes_to_use must be specified in kv_connector_extra_config, as a number of bytes above 0, got "
                f"{shown(size)}"
            )
        require_memory(f"cpu_bytes_to_use={shown(size)}", int(size), "ask for less")
        per_rank = sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors) // kv_cache_config.num_blocks
        self.cpu_page_size_per_worker = per_rank * self.block_size_factor
        block = self.cpu_page_size_per_worker * self.world_size
        if not block:
            raise ValueError("kv_connector='OffloadingConnector' needs a model with keys and values, got one without")
        self.num_blocks = int(size) // block
        if not self.num_blocks:
            raise ValueError(f"cpu_bytes_to_use must be at least {block}, which is one block, got {shown(size)}")
        self.eviction_policy = self.extra_config.get("eviction_policy", "lru")
        if self.eviction_policy not in ("lru", "arc"):
            raise ValueError(f"eviction_policy must be 'lru' or 'arc', got {shown(self.eviction_policy)}")
        self.store_threshold = self.setting("store_threshold", 0, 0)
        self.max_tracker_size = self.setting("max_tracker_size", 64_000, 1)

    def get_manager(self) -> OffloadingManager:
        """A new `CPUOffloadingManager`."""
        return CPUOffloadingManager(
            self.num_blocks, self.eviction_policy, self.vllm_config.kv_events.enable_kv_cache_events,
            self.store_threshold, self.max_tracker_size,
        )  # fmt: skip

    def create_handlers(self, kv_caches: CanonicalKVCaches) -> CpuGpuOffloadingHandlers:
        """New arrays of a rank, and both directions."""
        return CpuGpuOffloadingHandlers(kv_caches, self.block_size_factor, self.num_blocks)

    def get_handlers(
        self, kv_caches: CanonicalKVCaches
    ) -> Iterator[tuple[type[LoadStoreSpec], type[LoadStoreSpec], OffloadingHandler]]:
        """Stores, then loads."""
        handlers = self.create_handlers(kv_caches)
        yield GPULoadStoreSpec, CPULoadStoreSpec, handlers.gpu_to_cpu_handler
        yield CPULoadStoreSpec, GPULoadStoreSpec, handlers.cpu_to_gpu_handler
