"""The free list of KV cache blocks: a doubly linked list through the blocks themselves.

A deque would do, but for one operation: a block in the middle must leave in O(1) when a prefix hit claims it.
Upstream twin: `FreeKVCacheBlockQueue` in `vllm/v1/core/kv_cache_utils.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.core.block_pool import KVCacheBlock


class _Sentinel:
    """An end of the list; never popped, so that every block in between has two neighbours."""

    block_id = -1
    prev_free_block: KVCacheBlock | None = None
    next_free_block: KVCacheBlock | None = None


class FreeKVCacheBlockQueue:
    """Free blocks in the order in which they will be reused: least recently freed first.

    At the start the order is that of the block ids. A request frees its blocks from its tail to its head, so of one
    request the tail, which fewer others can share, is reused first.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:164 — `FreeKVCacheBlockQueue`.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = len(blocks)
        self.fake_free_list_head: KVCacheBlock = _Sentinel()  # type: ignore[assignment]
        self.fake_free_list_tail: KVCacheBlock = _Sentinel()  # type: ignore[assignment]
        previous = self.fake_free_list_head
        for block in blocks:
            previous.next_free_block = block
            block.prev_free_block = previous
            previous = block
        previous.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = previous

    def popleft(self) -> KVCacheBlock:
        """Take the first block.

        Raises:
            ValueError: the queue is empty.
        """
        if self.num_free_blocks == 0:
            raise ValueError("no free blocks")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the first `n` blocks.

        Raises:
            ValueError: there are fewer.
        """
        if n > self.num_free_blocks:
            raise ValueError(f"cannot pop {n} blocks: {self.num_free_blocks} are free")
        popped = []
        block = self.fake_free_list_head.next_free_block
        for _ in range(n):
            assert block is not None
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        assert block is not None
        self.fake_free_list_head.next_free_block = block
        block.prev_free_block = self.fake_free_list_head
        self.num_free_blocks -= n
        return popped

    def remove(self, block: KVCacheBlock) -> None:
        """Take this block out, wherever it stands.

        Raises:
            RuntimeError: it is not in the queue.
        """
        if block.prev_free_block is None or block.next_free_block is None:
            raise RuntimeError(f"remove() of a block that is not in the free queue: {block}")
        block.prev_free_block.next_free_block = block.next_free_block
        block.next_free_block.prev_free_block = block.prev_free_block
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put one block at the end."""
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put the blocks at the end, in this order.

        Raises:
            RuntimeError: one of them is in the queue already.
        """
        last = self.fake_free_list_tail.prev_free_block
        assert last is not None
        for block in blocks:
            if block.next_free_block is not None or block.prev_free_block is not None:
                raise RuntimeError(f"block {block.block_id} is already in the free queue: it was freed twice")
            last.next_free_block = block
            block.prev_free_block = last
            last = block
        last.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """The blocks from first to last (for tests and pictures)."""
        blocks = []
        block = self.fake_free_list_head.next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            blocks.append(block)
            block = block.next_free_block
        return blocks
