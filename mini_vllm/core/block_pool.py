"""The pool of KV cache blocks: which are free, in what order they are reused, and what content can be found again.

Everything here is bookkeeping; the arrays themselves are in `attention/kv_cache.py`.
Upstream twin: `vllm/v1/core/block_pool.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mini_vllm.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock, get_block_hash, get_group_id
from mini_vllm.distributed.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    KVCacheEvent,
    maybe_convert_block_hash,
)


class BlockHashToBlockMap:
    """Finds blocks by hash. Two blocks may hold the same content: both stay findable, the older one is preferred.

    Blocks are not merged when their contents turn out equal, so that a request's block table only ever grows at its
    end. Mostly one hash has one block, and the inner dict is saved.
    Upstream: upstream/vllm/v1/core/block_pool.py:34 — `BlockHashToBlockMap`.
    """

    def __init__(self) -> None:
        self._cache: dict[bytes, KVCacheBlock | dict[int, KVCacheBlock]] = {}

    def get_one_block(self, key: bytes) -> KVCacheBlock | None:
        """The first block stored under `key` that is still there, or None."""
        blocks = self._cache.get(key)
        return next(iter(blocks.values())) if isinstance(blocks, dict) else blocks

    def insert(self, key: bytes, block: KVCacheBlock) -> None:
        """Add one more block under `key`."""
        blocks = self._cache.get(key)
        if blocks is None:
            self._cache[key] = block
        elif isinstance(blocks, dict):
            blocks[block.block_id] = block
        else:
            self._cache[key] = {blocks.block_id: blocks, block.block_id: block}

    def pop(self, key: bytes, block_id: int) -> KVCacheBlock | None:
        """Remove block `block_id` from `key` and return it; None when it is not there."""
        blocks = self._cache.get(key)
        if isinstance(blocks, dict):
            block = blocks.pop(block_id, None)
            if not blocks:
                del self._cache[key]
            return block
        if blocks is None or blocks.block_id != block_id:
            return None
        return self._cache.pop(key)  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._cache)


class BlockPool:
    """Hands out blocks, takes them back, and keeps their content findable in between.

    Block 0 is the null block: never handed out, never cached, a filler wherever a block table needs an entry.

    Invariants, after every call:
        a block is in the free queue exactly when its `ref_cnt` is 0 (and it is not the null block);
        a block is in the hash map exactly when it has a hash.

    Args:
        num_gpu_blocks: blocks in the pool, the null block included (at least 2).
        enable_caching: whether contents are to be found again.
        enable_kv_cache_events: whether to write down what becomes findable and what no longer is.

    Upstream: upstream/vllm/v1/core/block_pool.py:130 — `BlockPool`, whose look-ups take a list of KV cache groups;
    here whoever asks puts the group into the hash (`make_block_hash_with_group_id`).
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True, enable_kv_cache_events: bool = False) -> None:
        if num_gpu_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (block 0 is the null block), got {num_gpu_blocks}")
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True
        self.enable_kv_cache_events = enable_kv_cache_events
        self.kv_event_queue: list[KVCacheEvent] = []

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block that holds this content, in use or free, or None."""
        return self.cached_block_hash_to_block.get_one_block(block_hash)

    def cache_full_blocks(
        self, block_hashes: Sequence[bytes], blocks: Sequence[KVCacheBlock], num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:  # fmt: skip
        """Make `blocks[num_cached_blocks:num_full_blocks]` findable under the hashes of the same indices."""
        for i in range(num_cached_blocks, num_full_blocks):
            block = blocks[i]
            if block.is_null:
                continue
            block.block_hash = block_hashes[i]
            self.cached_block_hash_to_block.insert(block_hashes[i], block)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take the `num_blocks` blocks that were free the longest; their old content can no longer be found.

        Raises:
            ValueError: fewer blocks are free.
        """
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(f"cannot get {num_blocks} blocks: {self.get_num_free_blocks()} are free")
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            if block.ref_cnt:
                raise RuntimeError(f"block {block.block_id} was in the free queue with ref_cnt {block.ref_cnt}")
            if self.enable_caching:
                self._maybe_evict_cached_block(block)
            block.ref_cnt = 1
        return blocks

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Make the block's content unfindable; returns whether it was findable."""
        key = block.block_hash
        if key is None:
            return False
        found = self.cached_block_hash_to_block.pop(key, block.block_id) is not None
        block.reset_hash()
        if found and self.enable_kv_cache_events:
            block_hash = maybe_convert_block_hash(get_block_hash(key))
            self.kv_event_queue.append(BlockRemoved([block_hash], MEDIUM_GPU, get_group_id(key)))
        return found

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one user to each block; a free one leaves the free queue, from wherever it stands, in O(1)."""
        for block in blocks:
            if block.ref_cnt == 0 and not block.is_null:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Take one user from each block; those without any join the free queue in the order given.

        The first of them will be the first reused. Contents stay findable until then.
        """
        blocks = list(ordered_blocks)
        for block in blocks:
            if block.ref_cnt <= 0 and not block.is_null:
                raise RuntimeError(f"block {block.block_id} was freed more often than it was taken")
            block.ref_cnt -= 1
        self.free_block_queue.append_n([block for block in blocks if block.ref_cnt == 0 and not block.is_null])

    def evict_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Make the contents of these blocks unfindable, whoever uses them."""
        for block in blocks:
            self._maybe_evict_cached_block(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all contents. Does nothing and returns False while any block is in use."""
        if self.get_num_free_blocks() != self.num_gpu_blocks - 1:
            return False
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        for block in self.blocks:
            block.reset_hash()
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """The events since the last call, in their order."""
        events, self.kv_event_queue = self.kv_event_queue, []
        return events

    def get_num_free_blocks(self) -> int:
        """Blocks that can be handed out now."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """Share of the usable blocks in use, from 0.0 to 1.0."""
        return 1.0 - self.get_num_free_blocks() / (self.num_gpu_blocks - 1)
