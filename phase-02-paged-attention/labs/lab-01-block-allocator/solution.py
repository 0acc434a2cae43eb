"""Lab 02-01: the paged block allocator: a free queue that gives from its middle, a chained hash, and the pool.

Everything here is bookkeeping about blocks. A block's keys and values lie elsewhere, in row `block_id` of an array that
this file never sees. Names and signatures are those of the engine, so that your pool can run it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

NONE_HASH = bytes(32)


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """Metadata of one physical block (provided)."""

    block_id: int
    ref_cnt: int = 0
    _block_hash: bytes | None = None
    prev_free_block: KVCacheBlock | None = None
    next_free_block: KVCacheBlock | None = None
    is_null: bool = False

    @property
    def block_hash(self) -> bytes | None:
        """Chained hash of the tokens up to this block's end; None while the block is not cached (provided)."""
        return self._block_hash

    @block_hash.setter
    def block_hash(self, block_hash: bytes) -> None:
        if self._block_hash is not None:
            raise RuntimeError(f"block {self.block_id} already has a hash; evict it before giving it another")
        self._block_hash = block_hash

    def reset_hash(self) -> None:
        """Forget the content (provided)."""
        self._block_hash = None

    def __repr__(self) -> str:
        return f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt})"


class FreeKVCacheBlockQueue:
    """Free blocks in the order in which they will be reused: a doubly linked list through the blocks themselves.

    Between the calls: each block in the queue has two neighbours, the fake ones at the ends included; a block outside
    has no links (both are None); `num_free_blocks` is the number of real blocks in the queue. Taking or adding one
    block reads and writes that block and its neighbours alone, however long the queue is. A refused call changes
    nothing.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = len(blocks)
        self.fake_free_list_head = KVCacheBlock(-1)
        self.fake_free_list_tail = KVCacheBlock(-1)
        chain = [self.fake_free_list_head, *blocks, self.fake_free_list_tail]
        for left, right in pairwise(chain):
            left.next_free_block, right.prev_free_block = right, left

    def popleft(self) -> KVCacheBlock:
        """Take the first block.

        Raises:
            ValueError: "no free blocks".
        """
        if self.num_free_blocks == 0:
            raise ValueError("no free blocks")
        first = self.fake_free_list_head.next_free_block
        assert first is not None
        self.remove(first)
        return first

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the first `n` blocks, in order; `n` may be 0.

        Raises:
            ValueError: "cannot pop N blocks: F are free".
        """
        if n > self.num_free_blocks:
            raise ValueError(f"cannot pop {n} blocks: {self.num_free_blocks} are free")
        popped: list[KVCacheBlock] = []
        block = self.fake_free_list_head.next_free_block
        for _ in range(n):
            assert block is not None
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            popped.append(block)
            block = following
        assert block is not None
        self.fake_free_list_head.next_free_block, block.prev_free_block = block, self.fake_free_list_head
        self.num_free_blocks -= n
        return popped

    def remove(self, block: KVCacheBlock) -> None:
        """Take this block out, wherever it stands.

        Raises:
            RuntimeError: "block B is not in the free queue".
        """
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise RuntimeError(f"block {block.block_id} is not in the free queue")
        before.next_free_block, after.prev_free_block = after, before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put one block at the end. Raises as `append_n`."""
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put the blocks at the end, in this order.

        Raises:
            RuntimeError: "block B is already in the free queue: it was freed twice", also for a block that is given
                twice.
        """
        given: set[int] = set()
        for block in blocks:
            if block.next_free_block is not None or block.block_id in given:
                raise RuntimeError(f"block {block.block_id} is already in the free queue: it was freed twice")
            given.add(block.block_id)
        for block in blocks:
            last, tail = self.fake_free_list_tail.prev_free_block, self.fake_free_list_tail
            assert last is not None
            last.next_free_block, block.prev_free_block = block, last
            block.next_free_block, tail.prev_free_block = tail, block
            self.num_free_blocks += 1

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """The blocks from first to last, without the two fake ones; the queue stays as it is."""
        blocks: list[KVCacheBlock] = []
        block = self.fake_free_list_head.next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            blocks.append(block)
            block = block.next_free_block
        return blocks


def hash_block_tokens(
    parent_block_hash: bytes | None, curr_block_token_ids: Sequence[int], extra_keys: tuple[str, ...] | None = None
) -> bytes:
    """Hash of a full block and, through its parent, of every token before it.

    SHA-256 over: the parent's hash (`NONE_HASH` where there is none), then the token ids as 64-bit integers
    (`array("q", ids).tobytes()`), then `repr(extra_keys).encode()` where there are any (None and `()` are none).

    Args:
        parent_block_hash: hash of the block before, None for the first.
        curr_block_token_ids: `block_size` token ids.
        extra_keys: whatever else the content depends on, for example a tenant's salt.

    Returns:
        32 bytes.
    """
    digest = hashlib.sha256(parent_block_hash if parent_block_hash is not None else NONE_HASH)
    digest.update(array("q", curr_block_token_ids).tobytes())
    if extra_keys:
        digest.update(repr(extra_keys).encode())
    return digest.digest()


class BlockHashToBlockMap:
    """Finds blocks by hash; two blocks of equal content are both kept, the older one is preferred (provided)."""

    def __init__(self) -> None:
        self._cache: dict[bytes, dict[int, KVCacheBlock]] = {}

    def get_one_block(self, key: bytes) -> KVCacheBlock | None:
        """The oldest block stored under `key` that is still there, or None (provided)."""
        return next(iter(self._cache.get(key, {}).values()), None)

    def insert(self, key: bytes, block: KVCacheBlock) -> None:
        """Add one more block under `key` (provided)."""
        self._cache.setdefault(key, {})[block.block_id] = block

    def pop(self, key: bytes, block_id: int) -> KVCacheBlock | None:
        """Remove block `block_id` from `key` and return it; None where it is not there (provided)."""
        blocks = self._cache.get(key, {})
        block = blocks.pop(block_id, None)
        if block is not None and not blocks:
            del self._cache[key]
        return block

    def __len__(self) -> int:
        return len(self._cache)


class BlockPool:
    """Hands out blocks, takes them back, and keeps their content findable in between.

    Block 0 is the null block: never handed out, never cached.

    I1: a block is in the free queue exactly when its `ref_cnt` is 0 and it is not the null block.
    I3: only full blocks get a hash, and a block is in the map exactly when it has one.
    I4: a block may be free and cached at once.

    Args:
        num_gpu_blocks: blocks in the pool, the null block included.
        enable_caching: whether contents are to be found again.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        if num_gpu_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (block 0 is the null block), got {num_gpu_blocks}")
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block that holds this content, in use or free, or None. Changes nothing."""
        return self.cached_block_hash_to_block.get_one_block(block_hash)

    def cache_full_blocks(
        self,
        block_hashes: Sequence[bytes],
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        """Give `blocks[num_cached_blocks:num_full_blocks]` the hashes of the same indices and make them findable.

        Null blocks are skipped. Where one of the others has a hash already, its setter raises, and nothing changes.
        """
        indices = [index for index in range(num_cached_blocks, num_full_blocks) if not blocks[index].is_null]
        for index in indices:
            if blocks[index].block_hash is not None:
                blocks[index].block_hash = block_hashes[index]  # the setter refuses, before any block has changed
        for index in indices:
            blocks[index].block_hash = block_hashes[index]
            self.cached_block_hash_to_block.insert(block_hashes[index], blocks[index])

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take the first `num_blocks` of the free queue; each has `ref_cnt` 1 and its old content is forgotten.

        Raises:
            ValueError: "cannot get N blocks: F are free", and nothing changes.
        """
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(f"cannot get {num_blocks} blocks: {self.get_num_free_blocks()} are free")
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            self._maybe_evict_cached_block(block)
            block.ref_cnt += 1
        return blocks

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Make the block's content unfindable and reset its hash; returns whether it was findable."""
        if block.block_hash is None:
            return False
        found = self.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
        block.reset_hash()
        return found is not None

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one user to each block; one that nobody used leaves the free queue.

        The null block may be among them: nothing happens to it, and what its `ref_cnt` says does not matter.
        """
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Take one user from each block; those without any join the free queue in the order given, hash and all.

        The null block may be among them, as for `touch`. A block that is given twice loses two users.

        Raises:
            RuntimeError: "block B was freed more often than it was taken", and nothing changes.
        """
        blocks = [block for block in ordered_blocks if not block.is_null]
        leaving = Counter(block.block_id for block in blocks)
        for block in blocks:
            if leaving[block.block_id] > block.ref_cnt:
                raise RuntimeError(f"block {block.block_id} was freed more often than it was taken")
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)

    def evict_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Make the contents of these blocks unfindable, whoever uses them (provided)."""
        for block in blocks:
            self._maybe_evict_cached_block(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all contents; False, and nothing done, while any block is in use (provided)."""
        if self.get_num_free_blocks() != self.num_gpu_blocks - 1:
            return False
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        for block in self.blocks:
            block.reset_hash()
        return True

    def get_num_free_blocks(self) -> int:
        """Blocks that can be handed out now."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """Share of the usable blocks in use, from 0.0 to 1.0; the null block is not counted."""
        return 1.0 - self.get_num_free_blocks() / (self.num_gpu_blocks - 1)
