"""KV cache groups of more than one type: prefix hits to whose length all of them agree.

Upstream twin: `vllm/v1/core/kv_cache_coordinator.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mini_vllm.core.kv_cache_coordinator import Hit, KVCacheCoordinator
from mini_vllm.core.kv_cache_utils import BlockHashListWithBlockSize, KVCacheBlock
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from mini_vllm.request import Request


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

        Under `use_eagle` a type that drops its last block is asked for one more. The pinned release does so with states
        too, which drop none: its hit may then be longer than what attention has.

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
                manager = self.single_type_managers[group_ids[0]]
                drop = self.use_eagle and manager.drops_last_block and spec not in dropped
                most = min(length + spec.block_size, max_cache_hit_length) if drop else length
                blocks = manager.find_longest_cache_hit(
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
