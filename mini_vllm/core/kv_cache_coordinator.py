"""All KV cache groups of a model as one: blocks for all of them or for none, and prefix hits that all of them share.

Upstream twin: `vllm/v1/core/kv_cache_coordinator.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_groups import resolve_kv_cache_block_sizes
from mini_vllm.core.kv_cache_utils import BlockHashListWithBlockSize, KVCacheBlock
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
"""Which manager serves which spec; a new type of layer adds its own.

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
            manager = spec_manager_map[type(spec)]
            most = spec.max_blocks_per_request(max_num_batched_tokens, max_model_len) if manager.recycles else None
            managers.append(manager(spec, block_pool, i, self.hash_block_size, most))
        self.single_type_managers: tuple[SingleTypeKVCacheManager, ...] = tuple(managers)
        self.recycles = any(manager.recycles for manager in managers)

    @abstractmethod
    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """The longest prefix of at most so many tokens that is there in every group."""

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Blocks that the free queue would lose, all groups together; arguments as of one manager's.

        Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:80 — `KVCacheCoordinator.get_num_blocks_to_allocate`.
        """
        return sum(
            manager.get_num_blocks_to_allocate(
                request_id, num_tokens, new_computed_blocks[i], total_computed_tokens, apply_admission_cap
            )
            for i, manager in enumerate(self.single_type_managers)
        )

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Sequence[KVCacheBlock]], num_computed_tokens: int
    ) -> None:
        """Start the request's tables with its prefix hits."""
        for manager, blocks in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.allocate_new_computed_blocks(request_id, blocks, num_computed_tokens)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> tuple[list[KVCacheBlock], ...]:
        """Lengthen the request's tables to so many slots; returns the new blocks of each group."""
        return tuple([manager.allocate_new_blocks(request_id, num_tokens) for manager in self.single_type_managers])

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


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Groups of more than one type: a hit is a length to which all of them agree.

    Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:392 — `HybridKVCacheCoordinator`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        by_spec: dict[KVCacheSpec, list[int]] = {}
        for i, group in enumerate(self.kv_cache_config.kv_cache_groups):
            by_spec.setdefault(group.kv_cache_spec, []).append(i)
        if len(by_spec) < 2:
            raise ValueError("a hybrid model must have layers of at least two types")
        # Full attention first: its scan from the front bounds what the others have to look at.
        self.attention_groups = sorted(by_spec.items(), key=lambda item: not isinstance(item[0], FullAttentionSpec))
        self.lcm_block_size = math.lcm(*(spec.block_size for spec in by_spec))
        first_is_full = isinstance(self.attention_groups[0][0], FullAttentionSpec)
        self._one_round_is_enough = len(self.attention_groups) == 2 and first_is_full

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Only what a hit of all groups together can reach is made findable.

        Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:487 — `HybridKVCacheCoordinator.cache_blocks`.
        """
        aligned = num_computed_tokens // self.lcm_block_size * self.lcm_block_size
        for manager in self.single_type_managers:
            manager.cache_blocks(request, aligned, self.lcm_block_size)

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """Ask type after type, each for no more than the one before found, until a whole round agrees.

        Upstream: upstream/vllm/v1/core/kv_cache_coordinator.py:503 — `HybridKVCacheCoordinator.find_longest_cache_hit`.
        """
        found: list[list[KVCacheBlock] | None] = [None] * len(self.single_type_managers)
        hit_length, dropped = max_cache_hit_length, set[KVCacheSpec]()  # types that left out their block at this length
        while True:
            length = hit_length
            for spec, group_ids in self.attention_groups:
                if isinstance(spec, FullAttentionSpec) and found[group_ids[0]] is not None:
                    length = length // spec.block_size * spec.block_size  # a prefix of a full hit is a hit
                    continue
                hashes = block_hashes
                if spec.block_size != self.hash_block_size:
                    hashes = BlockHashListWithBlockSize(block_hashes, self.hash_block_size, spec.block_size)
                drop = self.use_eagle and spec not in dropped
                most = min(length + spec.block_size, max_cache_hit_length) if drop else length
                blocks = self.single_type_managers[group_ids[0]].find_longest_cache_hit(
                    hashes, most, group_ids, self.block_pool, spec, self.lcm_block_size, drop
                )
                if drop:
                    dropped.add(spec)
                elif len(blocks[0]) * spec.block_size < length:
                    dropped.clear()
                length = len(blocks[0]) * spec.block_size
                for group_id, of_group in zip(group_ids, blocks, strict=True):
                    found[group_id] = of_group
            if length >= hit_length:
                break
            hit_length = length
            if self._one_round_is_enough:
                break
        spec, group_ids = self.attention_groups[0]
        if isinstance(spec, FullAttentionSpec):
            for group_id in group_ids:
                del (found[group_id] or [])[hit_length // spec.block_size :]
        return tuple(blocks or [] for blocks in found), hit_length


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
        kind = HybridKVCacheCoordinator
    return kind(kv_cache_config, block_pool, max_num_batched_tokens, max_model_len, use_eagle)
