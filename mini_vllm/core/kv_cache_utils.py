"""The pieces of the KV cache's bookkeeping: a block, the hashes of full blocks, and the queue of the free ones.

Upstream twin: `vllm/v1/core/kv_cache_utils.py`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from mini_vllm.multimodal.inputs import gen_mm_extra_hash_keys
from mini_vllm.request import BlockHasher, Request

# Parent of every first block. Upstream draws it at random for each process (or from PYTHONHASHSEED), so that nobody
# can aim for a collision; here runs should repeat.
NONE_HASH = bytes(32)


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """Metadata of one physical block; the block itself is row `block_id` of the KV arrays.

    `block_hash` is set exactly while the block is full and can be found by prefix caching. A block may be free and
    still hold its content: it stays findable until the pool hands it out again.
    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:116 — `KVCacheBlock`.
    """

    block_id: int
    ref_cnt: int = 0
    _block_hash: bytes | None = None
    # Links of the free queue; only FreeKVCacheBlockQueue touches them.
    prev_free_block: KVCacheBlock | None = None
    next_free_block: KVCacheBlock | None = None
    is_null: bool = False

    @property
    def block_hash(self) -> bytes | None:
        """Chained hash of the tokens up to this block's end, or None."""
        return self._block_hash

    @block_hash.setter
    def block_hash(self, block_hash: bytes) -> None:
        if self._block_hash is not None:
            raise RuntimeError(f"block {self.block_id} already has a hash; evict it before giving it another")
        self._block_hash = block_hash

    def reset_hash(self) -> None:
        """Forget the content."""
        self._block_hash = None

    def __repr__(self) -> str:  # without the links: a default repr would walk the whole list
        return f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, cached={self._block_hash is not None})"


def make_block_hash_with_group_id(block_hash: bytes, group_id: int) -> bytes:
    """The key of a block's content in the pool: one text has other keys and values in each KV cache group.

    Group 0 takes the hash as it is, so that a pool for one group need not know of groups.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:55 — `make_block_hash_with_group_id`, which always appends.
    """
    return block_hash + group_id.to_bytes(4, "big") if group_id else block_hash


def get_block_hash(key: bytes) -> bytes:
    """The hash without the group. Upstream: upstream/vllm/v1/core/kv_cache_utils.py:67 — `get_block_hash`."""
    return key[:-4] if get_group_id(key) else key


def get_group_id(key: bytes) -> int:
    """The group alone. Upstream: upstream/vllm/v1/core/kv_cache_utils.py:72 — `get_group_id`."""
    return int.from_bytes(key[-4:], "big") if len(key) % 16 == 4 else 0


def hash_block_tokens(
    parent_block_hash: bytes | None, curr_block_token_ids: Sequence[int], extra_keys: tuple[Any, ...] | None = None
) -> bytes:
    """Hash of a full block *and of all before it*: keys and values depend on every earlier token.

    Args:
        parent_block_hash: hash of the block before, None for the first.
        curr_block_token_ids: `block_size` token ids.
        extra_keys: whatever else the content depends on (an adapter, an item, a cache salt).

    Returns:
        32 bytes (SHA-256). Upstream's own are made where `prefix_caching_hash_algo` names one (`utils/hashing.py`).

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:541 — `hash_block_tokens`.
    """
    digest = hashlib.sha256(parent_block_hash or NONE_HASH)
    digest.update(array("q", curr_block_token_ids).tobytes())
    if extra_keys:
        digest.update(repr(extra_keys).encode())
    return digest.digest()


def generate_block_hash_extra_keys(
    request: Request, start_token_idx: int, end_token_idx: int
) -> tuple[Any, ...] | None:
    """What else the content of a block depends on: each on the name of the adapter, where the request has one, and on
    the items that stand in it; the first on the cache salt.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:503 — `generate_block_hash_extra_keys`.
    """
    keys: tuple[Any, ...] = () if request.lora_request is None else (request.lora_request.lora_name,)
    if request.mm_features:
        keys += gen_mm_extra_hash_keys(request.mm_features, start_token_idx, end_token_idx)
    if start_token_idx == 0 and request.cache_salt:
        keys += (request.cache_salt,)
    return keys or None


def get_request_block_hasher(block_size: int, hash_function: Callable[..., bytes] | None = None) -> BlockHasher:
    """Return a function that hashes those full blocks of a request that have no hash yet.

    `hash_function` takes the place of `hash_block_tokens`.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:637 — `get_request_block_hasher`.
    """

    def request_block_hasher(request: Request) -> list[bytes]:
        start = len(request.block_hashes) * block_size
        num_tokens = len(request.all_token_ids)
        if start + block_size > num_tokens:
            return []
        hash_block = hash_function or hash_block_tokens
        parent = request.block_hashes[-1] if request.block_hashes else None
        new_hashes = []
        while start + block_size <= num_tokens:
            extra_keys = generate_block_hash_extra_keys(request, start, start + block_size)
            parent = hash_block(parent, request.all_token_ids[start : start + block_size], extra_keys)
            new_hashes.append(parent)
            start += block_size
        return new_hashes

    return request_block_hasher


class _Sentinel:
    """An end of the list; never popped, so that every block in between has two neighbours."""

    block_id = -1
    prev_free_block: KVCacheBlock | None = None
    next_free_block: KVCacheBlock | None = None


class FreeKVCacheBlockQueue:
    """Free blocks in the order in which they will be reused: least recently freed first.

    A doubly linked list through the blocks themselves. A deque would do, but for one operation: a block in the middle
    must leave in O(1) when a prefix hit claims it.
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
            raise ValueError("No free blocks available")
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
            RuntimeError: "block B is already in the free queue: it was freed twice".
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


class BlockHashListWithBlockSize(Sequence[bytes]):
    """Hashes of blocks of `hash_block_size` tokens, read as those of longer blocks: consecutive ones put together.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:2079 — `BlockHashListWithBlockSize`.
    """

    def __init__(self, block_hashes: Sequence[bytes], hash_block_size: int, target_block_size: int) -> None:
        if target_block_size % hash_block_size:
            raise ValueError(f"block size {target_block_size} must be a multiple of {hash_block_size}")
        self.block_hashes, self.scale_factor = block_hashes, target_block_size // hash_block_size

    def __len__(self) -> int:
        return len(self.block_hashes) // self.scale_factor

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return b"".join(self.block_hashes[index * self.scale_factor : (index + 1) * self.scale_factor])

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))
