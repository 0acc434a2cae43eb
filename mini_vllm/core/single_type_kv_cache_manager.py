"""The block tables of one KV cache group: which blocks a request needs, finds again, and no longer needs.

What all types of layers have in common stands in the base class; a type is a subclass that says which tokens it can do
without (`get_num_skipped_tokens`) and what counts as a prefix hit (`find_longest_cache_hit`). The
usual one is here, the others have files of their own.
Upstream twin: `vllm/v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import (
    BlockHashListWithBlockSize,
    KVCacheBlock,
    make_block_hash_with_group_id,
)
from mini_vllm.kv_cache_interface import KVCacheSpec
from mini_vllm.request import Request
from mini_vllm.utils.math_utils import cdiv


class SingleTypeKVCacheManager(ABC):
    """Block tables of one group, all layers of which are of one type.

    Args:
        kv_cache_spec: of the group.
        block_pool: shared by all groups.
        kv_cache_group_id: which group.
        hash_block_size: tokens that one entry of `Request.block_hashes` stands for.
        max_admission_blocks: what one request needs at most, where blocks are given back on the way; None: all.

    Attributes:
        req_to_blocks: block table of each request that holds blocks.
        num_cached_block: how many of them are dealt with in the prefix cache, from the front.

    Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:31 — `SingleTypeKVCacheManager`.
    """

    recycles: ClassVar[bool] = False  # whether blocks are given back while the request runs
    is_plain: ClassVar[bool] = True  # whether nothing is to do where the table has room for a step's tokens
    counts_encoder_tokens: ClassVar[bool] = False  # whether slots are for the encoder's tokens, not for the decoder's
    drops_last_block: ClassVar[bool] = True  # whether `use_eagle` makes a hit shorter

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: int,
        hash_block_size: int,
        max_admission_blocks: int | None = None,
    ) -> None:
        self.kv_cache_spec, self.block_pool = kv_cache_spec, block_pool
        self.block_size, self.hash_block_size = kv_cache_spec.block_size, hash_block_size
        self.kv_cache_group_id, self.max_admission_blocks = kv_cache_group_id, max_admission_blocks
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self.num_cached_block: dict[str, int] = {}
        self._null_block = block_pool.null_block
        self._has_events = getattr(block_pool, "enable_kv_cache_events", False)

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock], total_computed_tokens: int,
        num_tokens_main_model: int, apply_admission_cap: bool = False,
    ) -> int:  # fmt: skip
        """Blocks that the free queue would lose: new ones, and hits that nobody uses now.

        Args:
            num_tokens: slots wanted in all, those already held included.
            new_computed_blocks: prefix hits, not yet touched.
            total_computed_tokens: of the request, hits included.
            num_tokens_main_model: slots without those for lookahead.
            apply_admission_cap: ask for no more than the request can hold at one time.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:89 —
        `SingleTypeKVCacheManager.get_num_blocks_to_allocate`.
        """
        num_required = cdiv(num_tokens, self.block_size)
        if apply_admission_cap and self.max_admission_blocks is not None:
            num_required = min(num_required, self.max_admission_blocks)
        num_held = len(self.req_to_blocks.get(request_id, ()))
        if request_id in self.num_cached_block:  # it runs: no hits any more
            return max(num_required - num_held, 0)
        num_skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        num_new = max(num_required - max(num_skipped, len(new_computed_blocks) + num_held), 0)
        wanted = new_computed_blocks[max(0, num_skipped - num_held) :]
        return num_new + sum(block.ref_cnt == 0 and not block.is_null for block in wanted)

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[KVCacheBlock], num_local_computed_tokens: int,
        num_external_computed_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Start a request's table with its prefix hits; null blocks stand for what it can do without, once the tokens
        are there that a KV connector loads after them.
        """
        if request_id in self.num_cached_block:
            return
        num_tokens = num_local_computed_tokens + num_external_computed_tokens
        num_skipped = self.get_num_skipped_tokens(num_tokens) // self.block_size
        hits = new_computed_blocks[num_skipped:]
        self.block_pool.touch(hits)
        self.req_to_blocks[request_id] = [*[self._null_block] * num_skipped, *hits]
        self.num_cached_block[request_id] = num_skipped + len(hits)

    def allocate_external_blocks(self, request_id: str, num_tokens: int) -> None:
        """Lengthen a table that was just started to `num_tokens`, the last of which a KV connector loads."""
        num_skipped_tokens, blocks = self.get_num_skipped_tokens(num_tokens), self.req_to_blocks[request_id]
        if num_tokens - (num_skipped_tokens >= self.block_size and num_skipped_tokens) > 0:
            blocks.extend(self.block_pool.get_new_blocks(cdiv(num_tokens, self.block_size) - len(blocks)))

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        """Lengthen the table to `num_tokens` slots; returns the new blocks.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:243 —
        `SingleTypeKVCacheManager.allocate_new_blocks`.
        """
        blocks = self.req_to_blocks.get(request_id)
        if blocks is None:
            blocks = self.req_to_blocks[request_id] = []
        num_new = cdiv(num_tokens, self.block_size) - len(blocks)
        if num_new <= 0:
            return []
        new_blocks = self.block_pool.get_new_blocks(num_new)
        blocks.extend(new_blocks)
        return new_blocks

    def cache_blocks(self, request: Request, num_tokens: int, alignment_tokens: int = 0) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable, those that were not before.

        `alignment_tokens`: hits of all groups together end at a multiple of it.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:278 — `SingleTypeKVCacheManager.cache_blocks`.
        """
        start = self.num_cached_block.get(request.request_id, 0)
        stop = num_tokens // self.block_size
        if start >= stop:
            return
        hashes: Sequence[bytes] = request.block_hashes
        blocks = self.req_to_blocks[request.request_id]
        if self.block_size != self.hash_block_size:
            hashes = BlockHashListWithBlockSize(hashes, self.hash_block_size, self.block_size)
        mask = None
        if alignment_tokens > self.block_size:
            mask = self._cache_block_mask(start, stop, alignment_tokens)
        if self.kv_cache_group_id or mask is not None:
            keys = [make_block_hash_with_group_id(h, self.kv_cache_group_id) for h in hashes[start:stop]]
            kept = mask or [True] * (stop - start)
            chosen = [block if keep else self._null_block for block, keep in zip(blocks[start:stop], kept, strict=True)]
            self.block_pool.cache_full_blocks(keys, chosen, 0, stop - start)
        else:
            self.block_pool.cache_full_blocks(hashes, blocks, start, stop)
        if self._has_events:
            from mini_vllm.core.kv_cache_event_writer import write_down

            write_down(self, request, hashes, start, stop, mask)
        self.num_cached_block[request.request_id] = stop

    def _cache_block_mask(self, start: int, stop: int, alignment_tokens: int) -> list[bool] | None:
        """Which of the blocks `start` to `stop` can ever be part of a hit; None: all of them."""
        return None

    def free(self, request_id: str) -> None:
        """Give the request's blocks back, last block first, so that the tail of a sequence is reused first.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:338 — `SingleTypeKVCacheManager.free`.
        """
        blocks = self.req_to_blocks.pop(request_id, None)
        self.num_cached_block.pop(request_id, None)
        if blocks:
            self.block_pool.free_blocks([block for block in reversed(blocks) if not block.is_null])

    def evict_after(self, request_id: str, num_valid_tokens: int) -> None:
        """Make those blocks of the request unfindable that hold anything beyond its first `num_valid_tokens` tokens."""
        blocks = self.req_to_blocks.get(request_id, [])
        num_cached = self.num_cached_block.get(request_id, 0)
        self.block_pool.evict_blocks(blocks[num_valid_tokens // self.block_size : num_cached])

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Give back the blocks that no token to come will look at; null blocks take their places.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:420 —
        `SingleTypeKVCacheManager.remove_skipped_blocks`.
        """
        num_skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        blocks = self.req_to_blocks.get(request_id)
        if not num_skipped or not blocks:
            return
        removed = []
        for i in range(min(num_skipped, len(blocks)) - 1, -1, -1):
            if blocks[i].is_null:
                break
            removed.append(blocks[i])
            blocks[i] = self._null_block
        if removed:
            self.block_pool.free_blocks(removed)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many of the first computed tokens no token to come will look at."""
        return 0

    def has_skipped_blocks(self, blocks: list[KVCacheBlock], num_computed_tokens: int) -> bool:
        """Whether `remove_skipped_blocks` would give one of these blocks back."""
        num_skipped = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        return num_skipped > 0 and not blocks[min(num_skipped, len(blocks)) - 1].is_null

    def get_num_common_prefix_blocks(self, running_request_id: str) -> int:
        """Blocks at the front that all requests share."""
        return 0

    def get_num_blocks_for(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at most at one time."""
        blocks, most = cdiv(num_tokens, self.block_size), self.max_admission_blocks
        return blocks if most is None else min(blocks, most)

    def new_step_starts(self) -> None:
        """A plan is begun."""
        return None

    @classmethod
    @abstractmethod
    def find_longest_cache_hit(
        cls, block_hashes: Sequence[bytes], max_length: int, kv_cache_group_ids: list[int], block_pool: BlockPool,
        kv_cache_spec: Any, alignment_tokens: int, use_eagle: bool = False,
    ) -> tuple[list[KVCacheBlock], ...]:  # fmt: skip
        """The longest prefix, of at most `max_length` tokens, that can be gone on from in all of these groups.

        use_eagle: without its last block, whose last slot of the drafter was made of the token after it.

        Returns:
            Blocks of each group, null where none is needed; their tokens are a multiple of `alignment_tokens`.
        """


def get_cached_block(block_pool: BlockPool, block_hash: bytes, group_ids: list[int]) -> list[KVCacheBlock] | None:
    """The block of each group that holds this content; None where one group has none.

    Upstream: upstream/vllm/v1/core/block_pool.py:184 — `BlockPool.get_cached_block`.
    """
    blocks = []
    for group_id in group_ids:
        block = block_pool.get_cached_block(make_block_hash_with_group_id(block_hash, group_id))
        if block is None:
            return None
        blocks.append(block)
    return blocks


def align(computed: tuple[list[KVCacheBlock], ...], block_size: int, alignment_tokens: int) -> None:
    """Drop blocks from the end until the tokens are a multiple of `alignment_tokens`."""
    while computed[0] and len(computed[0]) * block_size % alignment_tokens:
        for blocks in computed:
            blocks.pop()


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every token looks at all before it: nothing is given back, and a hit is an unbroken run from the start.

    Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:481 — `FullAttentionManager`.
    """

    @classmethod
    def find_longest_cache_hit(
        cls, block_hashes: Sequence[bytes], max_length: int, kv_cache_group_ids: list[int], block_pool: BlockPool,
        kv_cache_spec: Any, alignment_tokens: int, use_eagle: bool = False,
    ) -> tuple[list[KVCacheBlock], ...]:  # fmt: skip
        """From the front to the first miss."""
        block_size = kv_cache_spec.block_size
        computed: tuple[list[KVCacheBlock], ...] = tuple([] for _ in kv_cache_group_ids)
        for i in range(min(max_length // block_size, len(block_hashes))):
            cached = get_cached_block(block_pool, block_hashes[i], kv_cache_group_ids)
            if cached is None:
                break
            for blocks, block in zip(computed, cached, strict=True):
                blocks.append(block)
        if use_eagle:
            for blocks in computed:
                del blocks[-1:]
        align(computed, block_size, alignment_tokens)
        return computed

    def get_num_common_prefix_blocks(self, running_request_id: str) -> int:
        """Counts from the front while every request uses the block."""
        count = 0
        for block in self.req_to_blocks.get(running_request_id, ()):
            if block.ref_cnt != len(self.req_to_blocks):
                break
            count += 1
        return count
