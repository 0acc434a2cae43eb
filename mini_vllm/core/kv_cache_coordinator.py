"""All KV cache groups of a model as one: blocks for all of them or for none, and prefix hits that all of them share.

Upstream twin: `vllm/v1/core/kv_cache_coordinator.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_groups import resolve_kv_cache_block_sizes
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.other_managers import get_other_manager
from mini_vllm.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from mini_vllm.core.sliding_window_manager import SlidingWindowManager
from mini_vllm.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_vllm.request import Request

Hit = tuple[tuple[list[KVCacheBlock], ...], int]
"""Blocks of each group, and how many tokens they stand for."""

spec_manager_map: dict[type[KVCacheSpec], type[Any]] = {
    FullAttentionSpec: FullAttentionManager,
    MLAAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
}
"""Which manager serves which spec; a new type of layer adds its own. The rest stand in `other_managers.py`.

Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:1200 — `spec_manager_map`.
"""


class KVCacheCoordinator(ABC):
    """One manager for each group over one pool.

    Args:
        kv_cache_config: the groups.
        block_pool: the blocks of all of them.
        max_num_batched_tokens, max_model_len: bound what a request holds at one time.
        use_eagle: hits leave their last block out, in every group.

    Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:28 — `KVCacheCoordinator`.
    """

    def __init__(
        self, kv_cache_config: KVCacheConfig, block_pool: BlockPool, max_num_batched_tokens: int, max_model_len: int,
        use_eagle: bool = False,
    ) -> None:  # fmt: skip
        self.kv_cache_config, self.block_pool, self.use_eagle = kv_cache_config, block_pool, use_eagle
        self.alignment_tokens, self.hash_block_size = resolve_kv_cache_block_sizes(kv_cache_config.kv_cache_groups)
        managers = []
        for i, group in enumerate(kv_cache_config.kv_cache_groups):
            spec = group.kv_cache_spec
            manager = spec_manager_map.get(type(spec)) or get_other_manager(spec)
            most = spec.max_admission_blocks_per_request(max_num_batched_tokens, max_model_len)
            managers.append(manager(spec, block_pool, i, self.hash_block_size, most))
        self.single_type_managers: tuple[SingleTypeKVCacheManager, ...] = tuple(managers)
        self.recycles = any(manager.recycles for manager in managers)
        self.is_plain = all(manager.is_plain for manager in managers)

    @abstractmethod
    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """The longest prefix of at most so many tokens that is there in every group."""

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
        num_encoder_tokens: int, total_computed_tokens: int, num_tokens_main_model: int,
        apply_admission_cap: bool = False,
    ) -> int:  # fmt: skip
        """Blocks that the free queue would lose, all groups together; arguments as of one manager's, and the tokens of
        the encoder, which are the ones that count for cross attention.

        Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:80 — `KVCacheCoordinator.get_num_blocks_to_allocate`.
        """
        return sum(
            manager.get_num_blocks_to_allocate(
                request_id, num_encoder_tokens if manager.counts_encoder_tokens else num_tokens,
                new_computed_blocks[i], total_computed_tokens, num_tokens_main_model, apply_admission_cap,
            )
            for i, manager in enumerate(self.single_type_managers)
        )  # fmt: skip

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Sequence[KVCacheBlock]], num_local_computed_tokens: int,
        num_external_computed_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Start the request's tables with its prefix hits, and with blocks for what is loaded. The hits of all groups
        are taken before any new block: the pinned release gives hits of a later group away to an earlier one."""
        counts = num_local_computed_tokens, num_external_computed_tokens
        for manager, blocks in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.allocate_new_computed_blocks(request_id, blocks, *counts)
        for manager in self.single_type_managers if num_external_computed_tokens else ():
            manager.allocate_external_blocks(request_id, sum(counts))

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int, num_encoder_tokens: int = 0
    ) -> tuple[list[KVCacheBlock], ...]:
        """Lengthen the request's tables to so many slots; returns the new blocks of each group."""
        blocks = []
        for manager in self.single_type_managers:
            num_slots = num_encoder_tokens if manager.counts_encoder_tokens else num_tokens
            blocks.append(manager.allocate_new_blocks(request_id, num_slots, num_tokens_main_model))
        return tuple(blocks)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Make full blocks findable in every group."""
        for manager in self.single_type_managers:
            manager.cache_blocks(request, num_computed_tokens)

    def free(self, request_id: str) -> None:
        """Give all blocks of the request back, group after group."""
        for manager in self.single_type_managers:
            manager.free(request_id)

    def evict_after(self, request_id: str, num_valid_tokens: int) -> None:
        """See `SingleTypeKVCacheManager.evict_after`."""
        for manager in self.single_type_managers:
            manager.evict_after(request_id, num_valid_tokens)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Give back what no token to come will look at."""
        for manager in self.single_type_managers:
            manager.remove_skipped_blocks(request_id, total_computed_tokens)

    def get_blocks(self, request_id: str) -> tuple[list[KVCacheBlock], ...]:
        """The request's block tables, one for each group."""
        return tuple([manager.req_to_blocks.get(request_id) or [] for manager in self.single_type_managers])

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """For each group, blocks at the front that all requests share."""
        return [manager.get_num_common_prefix_blocks(running_request_id) for manager in self.single_type_managers]


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """Without prefix caching: any number of groups, and never a hit.

    Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:276 — `KVCacheCoordinatorNoPrefixCache`.
    """

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """None."""
        return tuple([] for _ in self.single_type_managers), 0

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Nothing is shared."""
        return [0] * len(self.single_type_managers)


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its manager's answers are those of the model.

    Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:324 — `UnitaryKVCacheCoordinator`.
    """

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """The group's own longest hit."""
        manager = self.single_type_managers[0]
        spec, size = manager.kv_cache_spec, manager.block_size
        blocks = manager.find_longest_cache_hit(
            block_hashes, max_cache_hit_length, [0], self.block_pool, spec, size, self.use_eagle
        )
        return blocks, len(blocks[0]) * manager.block_size


def get_kv_cache_coordinator(
    kv_cache_config: KVCacheConfig,
    block_pool: BlockPool,
    max_num_batched_tokens: int,
    max_model_len: int,
    enable_caching: bool,
    use_eagle: bool = False,
) -> KVCacheCoordinator:
    """The coordinator for these groups, and with or without prefix caching.

    Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:610 — `get_kv_cache_coordinator`.
    """
    kind: type[KVCacheCoordinator]
    if not enable_caching:
        kind = KVCacheCoordinatorNoPrefixCache
    elif len(kv_cache_config.kv_cache_groups) == 1:
        kind = UnitaryKVCacheCoordinator
    else:
        from mini_vllm.core.hybrid_kv_cache_coordinator import HybridKVCacheCoordinator

        kind = HybridKVCacheCoordinator
    return kind(kv_cache_config, block_pool, max_num_batched_tokens, max_model_len, use_eagle)
