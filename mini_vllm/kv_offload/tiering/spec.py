"""Offloading to the host's memory with tiers below it. Upstream twin: `vllm/v1/kv_offload/tiering/spec.py`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mini_vllm.kv_offload.base import CanonicalKVCaches, OffloadingManager
from mini_vllm.kv_offload.cpu.gpu_worker import CpuGpuOffloadingHandlers
from mini_vllm.kv_offload.cpu.manager import CPUOffloadingManager
from mini_vllm.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from mini_vllm.kv_offload.cpu.spec import CPUOffloadingSpec
from mini_vllm.kv_offload.tiering.factory import SecondaryTierFactory
from mini_vllm.kv_offload.tiering.manager import TieringOffloadingManager
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.kv_cache_interface import KVCacheConfig


class TieringOffloadingSpec(CPUOffloadingSpec):
    """As `CPUOffloadingSpec`, and `secondary_tiers`: a list of dicts, each with a `type` ("fs_python": files) and the
    arguments of that tier. The engine's `engine_id` names the memory that is shared while it starts.

    Raises:
        ValueError: as `CPUOffloadingSpec`; there is no tier, a `store_threshold` beside them, the model has several KV
            cache groups, or adapters, whose names say nothing of their weights to whoever comes later.

    Upstream: upstream/vllm/v1/kv_offload/tiering/spec.py:53 — `TieringOffloadingSpec`, which serves one group too.
    """

    known = CPUOffloadingSpec.known | {"secondary_tiers"}
    names_model = True

    def __init__(self, vllm_config: EngineConfig, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, kv_cache_config)
        tiers = self.extra_config.get("secondary_tiers")
        if not isinstance(tiers, list) or not tiers:
            raise ValueError(f"secondary_tiers must be a list of tier configurations, got {shown(tiers)}")
        self.secondary_tier_configs = tiers
        if self.store_threshold >= 2:
            raise ValueError("store_threshold is not supported for TieringOffloadingSpec")
        if len(self.gpu_block_size) != 1:
            raise ValueError(
                f"secondary_tiers need a model of one KV cache group, got {len(self.gpu_block_size)}: set "
                "disable_hybrid_kv_cache_manager=True, and all layers are in one"
            )
        if vllm_config.lora is not None:
            raise ValueError("secondary_tiers need enable_lora=False: an adapter's name says nothing of its weights")

    def _make_region(self, rank: int | None) -> SharedOffloadRegion:
        """It lives as long as the spec: with it goes its name, which the scheduler's half has to find."""
        settings = hashlib.sha256(repr(sorted(self.extra_config.items())).encode()).hexdigest()[:12]
        instance_id = f"{self.vllm_config.kv_transfer_config.engine_id}_{settings}"
        size = self.cpu_page_size_per_worker
        self._region = SharedOffloadRegion(instance_id, self.num_blocks, rank, self.world_size, size)
        return self._region

    def get_manager(self) -> OffloadingManager:
        """A new `TieringOffloadingManager`; its tiers may have threads."""
        events = self.vllm_config.kv_events.enable_kv_cache_events
        primary = CPUOffloadingManager(self.num_blocks, self.eviction_policy, events)
        view, make = self._make_region(None).create_kv_memoryview(), SecondaryTierFactory.create_secondary_tier
        return TieringOffloadingManager(primary, [make(config, view, self) for config in self.secondary_tier_configs])

    def create_handlers(self, kv_caches: CanonicalKVCaches) -> CpuGpuOffloadingHandlers:
        """As `CPUOffloadingSpec.create_handlers`, over this rank's part of the shared memory."""
        view = self._make_region(self.rank).create_next_view
        return CpuGpuOffloadingHandlers(kv_caches, self.block_size_factor, self.num_blocks, view)
