"""Adaptive replacement: what was of use once and what was of use often share the room, and the share is learned.

    T1  used once                    B1  gone from T1: a key alone
    T2  used again                   B2  gone from T2: a key alone

A key of B1 that is asked for says that T1 was too small, one of B2 that T2 was: `target_t1_size` follows.

Upstream twin: `vllm/v1/kv_offload/cpu/policies/arc.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from mini_vllm.kv_offload.base import OffloadKey
from mini_vllm.kv_offload.cpu.policies.base import BlockStatus, CachePolicy

Row = OrderedDict[OffloadKey, BlockStatus]
Ghosts = OrderedDict[OffloadKey, None]


class ARCCachePolicy(CachePolicy):
    """Two rows of blocks and two of keys; in each the next to go stands in front.

    Upstream: upstream/vllm/v1/kv_offload/cpu/policies/arc.py:10 — `ARCCachePolicy`.
    """

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity
        self.target_t1_size = 0.0
        self.t1, self.t2 = Row(), Row()
        self.b1, self.b2 = Ghosts(), Ghosts()

    def get(self, key: OffloadKey) -> BlockStatus | None:
        """See `CachePolicy.get`."""
        return self.t1.get(key) or self.t2.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        """At the end of T1, also where it was known before."""
        self.t1[key] = block
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def remove(self, key: OffloadKey) -> None:
        """See `CachePolicy.remove`; it leaves no ghost."""
        if self.t1.pop(key, None) is None:
            self.t2.pop(key, None)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """From T1 to T2, in T2 to the end; a ghost moves the target. What is still being written stays in T1.

        Upstream: upstream/vllm/v1/kv_offload/cpu/policies/arc.py:69 — `ARCCachePolicy.touch`.
        """
        for key in reversed(list(keys)):
            if key in self.t1:
                block = self.t1.pop(key)
                (self.t2 if block.is_ready else self.t1)[key] = block
            elif key in self.t2:
                self.t2.move_to_end(key)
            elif key in self.b1:
                step = max(1, len(self.b2) / len(self.b1))
                self.target_t1_size = min(self.target_t1_size + step, self.cache_capacity)
                self.b1.move_to_end(key)
            elif key in self.b2:
                step = max(1, len(self.b1) / len(self.b2))
                self.target_t1_size = max(self.target_t1_size - step, 0)
                self.b2.move_to_end(key)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        """One after the other from T1 while it is not below its target, else from T2; T1 is not touched again for
        want of blocks in T2. Who goes leaves its key among the ghosts.

        Upstream: upstream/vllm/v1/kv_offload/cpu/policies/arc.py:104 — `ARCCachePolicy.evict`.
        """
        chosen: list[tuple[OffloadKey, BlockStatus, bool]] = []
        taken = set(protected)
        size_of_t1 = len(self.t1)
        for _ in range(n):
            found = None
            from_t1 = size_of_t1 >= int(self.target_t1_size)
            if from_t1:
                found = self._first(self.t1, taken)
            if found is None:
                from_t1, found = False, self._first(self.t2, taken)
            if found is None:
                return None
            size_of_t1 -= from_t1
            taken.add(found[0])
            chosen.append((*found, from_t1))
        for key, _, from_t1 in chosen:
            row, ghosts = (self.t1, self.b1) if from_t1 else (self.t2, self.b2)
            del row[key]
            ghosts[key] = None
        for ghosts in (self.b1, self.b2) if n else ():
            while len(ghosts) > self.cache_capacity:
                ghosts.popitem(last=False)
        return [(key, block) for key, block, _ in chosen]

    @staticmethod
    def _first(row: Row, taken: set[OffloadKey]) -> tuple[OffloadKey, BlockStatus] | None:
        return next((item for item in row.items() if item[1].ref_cnt == 0 and item[0] not in taken), None)

    def clear(self) -> None:
        """See `CachePolicy.clear`; what was learned is forgotten too."""
        for row in (self.t1, self.t2, self.b1, self.b2):
            row.clear()
        self.target_t1_size = 0.0
