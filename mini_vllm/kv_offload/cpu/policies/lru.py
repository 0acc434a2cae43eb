"""What was of use the longest time ago goes first. Upstream twin: `vllm/v1/kv_offload/cpu/policies/lru.py`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from mini_vllm.kv_offload.base import OffloadKey
from mini_vllm.kv_offload.cpu.policies.base import BlockStatus, CachePolicy


class LRUCachePolicy(CachePolicy):
    """One row of blocks: the next to go stands in front.

    Upstream: upstream/vllm/v1/kv_offload/cpu/policies/lru.py:10 — `LRUCachePolicy`.
    """

    def __init__(self, cache_capacity: int) -> None:
        self.blocks: OrderedDict[OffloadKey, BlockStatus] = OrderedDict()

    def get(self, key: OffloadKey) -> BlockStatus | None:
        """See `CachePolicy.get`."""
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        """At the end of the row."""
        self.blocks[key] = block

    def remove(self, key: OffloadKey) -> None:
        """See `CachePolicy.remove`."""
        del self.blocks[key]

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """To the end of the row, the last key first."""
        for key in reversed(list(keys)):
            if key in self.blocks:
                self.blocks.move_to_end(key)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        """The first n that may go."""
        may_go = (item for item in self.blocks.items() if item[1].ref_cnt == 0 and item[0] not in protected)
        found = list(islice(may_go, n))
        if len(found) < n:
            return None
        for key, _ in found:
            del self.blocks[key]
        return found

    def clear(self) -> None:
        """See `CachePolicy.clear`."""
        self.blocks.clear()
