"""Which blocks are in the host's memory, and where. Upstream twin: `vllm/v1/kv_offload/cpu/manager.py`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from mini_vllm.kv_offload.base import (
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from mini_vllm.kv_offload.cpu.common import CPULoadStoreSpec
from mini_vllm.kv_offload.cpu.policies.arc import ARCCachePolicy
from mini_vllm.kv_offload.cpu.policies.base import BlockStatus, CachePolicy
from mini_vllm.kv_offload.cpu.policies.lru import LRUCachePolicy

CACHE_POLICIES: dict[str, type[CachePolicy]] = {"lru": LRUCachePolicy, "arc": ARCCachePolicy}


class CPUOffloadingManager(OffloadingManager):
    """Places, counts of readers, and events; which block goes is the policy's.

    Args:
        num_blocks: places. cache_policy: "lru" or "arc". enable_events: whether `take_events` has any.
        store_threshold: a block is stored when it was looked up so many times; below 2, at once.
        max_tracker_size: of how many blocks that is counted.

    Raises:
        ValueError: an unknown policy.

    Upstream: upstream/vllm/v1/kv_offload/cpu/manager.py:26 — `CPUOffloadingManager`.
    """

    def __init__(
        self, num_blocks: int, cache_policy: str = "lru", enable_events: bool = False, store_threshold: int = 1,
        max_tracker_size: int = 64_000,
    ) -> None:  # fmt: skip
        if cache_policy not in CACHE_POLICIES:
            raise ValueError(f"Unknown cache policy: {cache_policy!r}. Supported: {list(CACHE_POLICIES)}")
        self.medium = CPULoadStoreSpec.medium()
        self._num_blocks, self._num_allocated_blocks = num_blocks, 0
        self._free_list: list[int] = []
        self._policy = CACHE_POLICIES[cache_policy](cache_capacity=num_blocks)
        self.events: list[OffloadingEvent] | None = [] if enable_events else None
        self.store_threshold, self.max_tracker_size = store_threshold, max_tracker_size
        self.counts: OrderedDict[OffloadKey, int] | None = OrderedDict() if store_threshold >= 2 else None

    def _get_num_free_blocks(self) -> int:
        return len(self._free_list) + self._num_blocks - self._num_allocated_blocks

    def _allocate_blocks(self, count: int) -> list[BlockStatus]:
        """Places that were never used come first, then the one that was given back last."""
        first, num_fresh = self._num_allocated_blocks, min(count, self._num_blocks - self._num_allocated_blocks)
        self._num_allocated_blocks += num_fresh
        reused = [self._free_list.pop() for _ in range(count - num_fresh)]
        return [BlockStatus(block_id) for block_id in (*range(first, first + num_fresh), *reused)]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """As `OffloadingManager.lookup`; None while it is being written."""
        if self.counts is not None:
            count = self.counts.pop(key, 0)
            if not count and len(self.counts) >= self.max_tracker_size:
                self.counts.popitem(last=False)
            self.counts[key] = count + 1
        block = self._policy.get(key)
        if block is None:
            return False
        return True if block.is_ready else None

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        """See `OffloadingManager.prepare_load`."""
        blocks = [self._held(key) for key in keys]
        for key, block in zip(keys, blocks, strict=True):
            assert block.is_ready, f"Block {key!r} is not ready for reading"
            block.ref_cnt += 1
        return CPULoadStoreSpec([block.block_id for block in blocks])

    def _held(self, key: OffloadKey) -> BlockStatus:
        block = self._policy.get(key)
        assert block is not None, f"Block {key!r} not found in cache"
        return block

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """As the policy's."""
        self._policy.touch(keys)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """See `OffloadingManager.complete_load`."""
        for key in keys:
            block = self._held(key)
            assert block.ref_cnt > 0, f"Block {key!r} ref_cnt is already 0"
            block.ref_cnt -= 1

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """As `OffloadingManager.prepare_store`. None of the given blocks goes for another of them.

        Upstream: upstream/vllm/v1/kv_offload/cpu/manager.py:139 — `CPUOffloadingManager.prepare_store`.
        """
        if self.counts is not None:
            keys = [key for key in keys if self.counts.get(key, 0) >= self.store_threshold]
        keys_to_store = [key for key in keys if self._policy.get(key) is None]
        return self._insert(keys_to_store, set(keys))

    def prepare_write(self, key: OffloadKey, protected: set[OffloadKey]) -> int | None:
        """A place for a block that a tier brings up, and which is not here; None where all that may go is protected.

        Upstream: upstream/vllm/v1/kv_offload/tiering/manager.py:58 — `CPUPrimaryTierOffloadingManager`.
        """
        output = self._insert([key], {key, *protected})
        return None if output is None else self._held(key).block_id

    def _insert(self, keys: list[OffloadKey], protected: set[OffloadKey]) -> PrepareStoreOutput | None:
        missing = len(keys) - self._get_num_free_blocks()
        evicted = self._policy.evict(missing, protected) if keys and missing > 0 else []
        if evicted is None:
            return None
        self._free_list += [block.block_id for _, block in evicted]
        self._note([key for key, _ in evicted], removed=True)
        blocks = self._allocate_blocks(len(keys))
        for key, block in zip(keys, blocks, strict=True):
            self._policy.insert(key, block)
        spec = CPULoadStoreSpec([block.block_id for block in blocks])
        return PrepareStoreOutput(keys, spec, [key for key, _ in evicted])

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """As `OffloadingManager.complete_store`; blocks that are complete already are left alone.

        Upstream: upstream/vllm/v1/kv_offload/cpu/manager.py:196 — `CPUOffloadingManager.complete_store`.
        """
        found = [(key, self._policy.get(key)) for key in keys]
        written: Sequence[tuple[OffloadKey, BlockStatus]]
        written = [(key, block) for key, block in found if block is not None and not block.is_ready]
        for key, block in written:
            if success:
                block.ref_cnt = 0
            else:
                self._policy.remove(key)
                self._free_list.append(block.block_id)
        if success:
            self._note([key for key, _ in written], removed=False)

    def forget(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """See `OffloadingManager.forget`."""
        gone = [key for key in keys if (block := self._policy.get(key)) is not None and block.ref_cnt == 0]
        for key in gone:
            self._free_list.append(self._held(key).block_id)
            self._policy.remove(key)
        self._note(gone, removed=True)

    def _note(self, keys: list[OffloadKey], removed: bool) -> None:
        if keys and self.events is not None:
            self.events.append(OffloadingEvent(keys, self.medium, removed))

    def reset_cache(self) -> None:
        """See `OffloadingManager.reset_cache`."""
        self._policy.clear()
        self._free_list.clear()
        self._num_allocated_blocks = 0

    def take_events(self) -> Iterable[OffloadingEvent]:
        """See `OffloadingManager.take_events`."""
        if self.events is None:
            return ()
        taken, self.events = self.events, []
        return taken
