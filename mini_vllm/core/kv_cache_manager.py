"""Which blocks belong to which request: the bookkeeping of the paged KV cache.

Upstream spreads this over `KVCacheManager`, a coordinator for models with several kinds of attention, and a manager
for each kind. Here every layer attends to everything (or masks a window), so one kind is enough.
Upstream twins: `vllm/v1/core/kv_cache_manager.py`, `vllm/v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.metrics.stats import PrefixCacheStats
from mini_vllm.request import Request
from mini_vllm.utils.math_utils import cdiv


@dataclass(slots=True)
class _RequestBlocks:
    """Block table of one request; the first `num_cached` of its blocks can be found by hash."""

    blocks: list[KVCacheBlock] = field(default_factory=list)
    num_cached: int = 0


class KVCacheManager:
    """Gives requests the slots they are about to write, and finds what has been computed before.

    Args:
        num_blocks: blocks in the pool, the null block included.
        block_size: tokens per block.
        enable_caching: find equal prefixes again (`enable_prefix_caching` of the engine).
        max_model_len: cap on the tokens of one request.
        block_pool: makes the pool from the number of blocks and `enable_caching`.

    Upstream: upstream/vllm/v1/core/kv_cache_manager.py:110 — `KVCacheManager`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_caching: bool = True,
        max_model_len: int = 1 << 62,
        block_pool: Callable[[int, bool], BlockPool] | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.max_model_len = max_model_len
        self.block_pool = (block_pool or BlockPool)(num_blocks, enable_caching)
        self.req_to_blocks: dict[str, _RequestBlocks] = {}
        self.prefix_cache_stats = PrefixCacheStats()

    @property
    def usage(self) -> float:
        """Share of the pool in use, from 0.0 to 1.0."""
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Find the longest prefix of the request whose keys and values are in the pool.

        At least one token is left to compute, because its logits are needed: of a prompt that is there as a whole,
        the last block is computed again.

        Returns:
            The blocks, not yet touched, and how many tokens they hold.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return [], 0
        blocks: list[KVCacheBlock] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            blocks.append(block)
        num_tokens = len(blocks) * self.block_size
        self.prefix_cache_stats.record(request.num_tokens, num_tokens, request.num_preemptions > 0)
        return blocks, num_tokens

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: list[KVCacheBlock] | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> list[KVCacheBlock] | None:
        """Give the request slots for `num_new_tokens` more tokens, or change nothing at all.

            | computed before | hits | new tokens | lookahead |
                                     ^-- slots are needed for these two

        Full blocks are made findable here, before their content is computed. That is safe because the forward pass
        of a step writes the keys and values of all its tokens before it reads any.

        Args:
            num_new_tokens: tokens to compute in this step (at least 1).
            num_new_computed_tokens, new_computed_blocks: what `get_computed_blocks` found, for a request that holds
                no blocks yet. `request.num_computed_tokens` does not count them yet.
            num_lookahead_tokens: slots for draft tokens beyond them.
            full_sequence_must_fit: refuse unless *all* tokens of the request fit, not only those of this step.

        Returns:
            The new blocks; an empty list is a success (the last block had room). None: not enough free blocks.

        Upstream: upstream/vllm/v1/core/kv_cache_manager.py:236 — `KVCacheManager.allocate_slots`.
        """
        if num_new_tokens < 1:
            raise ValueError(f"num_new_tokens must be at least 1, got {num_new_tokens}")
        hits = new_computed_blocks or []
        table = self.req_to_blocks.get(request.request_id)
        num_held = len(table.blocks) if table else 0
        if hits and num_held:
            raise ValueError(f"request {request.request_id!r} already holds blocks and cannot take prefix hits")
        if num_held and not full_sequence_must_fit:  # most calls: a decoding request whose last block has room
            num_tokens = request.num_computed_tokens + num_new_tokens
            if num_tokens + num_lookahead_tokens <= num_held * self.block_size:
                self.cache_blocks(request, num_tokens)
                return []

        computed = request.num_computed_tokens + num_new_computed_tokens
        num_tokens = computed + num_new_tokens
        num_slots = min(num_tokens + num_lookahead_tokens, self.max_model_len)
        num_must_fit = max(num_slots, min(request.num_tokens, self.max_model_len) if full_sequence_must_fit else 0)
        # Hits that nobody uses sit in the free queue: taking them shrinks it too.
        num_evictable = sum(block.ref_cnt == 0 for block in hits)
        num_new = max(cdiv(num_slots, self.block_size) - num_held - len(hits), 0)
        num_needed = max(cdiv(num_must_fit, self.block_size) - num_held - len(hits), 0)
        if num_needed + num_evictable > self.block_pool.get_num_free_blocks():
            return None

        if table is None:
            table = self.req_to_blocks[request.request_id] = _RequestBlocks()
        if hits:
            self.block_pool.touch(hits)
            table.blocks.extend(hits)
            table.num_cached = len(hits)
        new_blocks = self.block_pool.get_new_blocks(num_new) if num_new else []
        table.blocks.extend(new_blocks)
        self.cache_blocks(request, num_tokens)
        return new_blocks

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the request's first `num_tokens` tokens findable; only tokens that exist count."""
        table = self.req_to_blocks[request.request_id]
        num_full = num_tokens // self.block_size
        if self.enable_caching and num_full > table.num_cached:
            num_full = min(num_full, request.num_tokens // self.block_size)
            self.block_pool.cache_full_blocks(request.block_hashes, table.blocks, table.num_cached, num_full)
            table.num_cached = max(table.num_cached, num_full)

    def check_fits(self, num_prompt_tokens: int, max_tokens: int | None) -> None:
        """Raise ValueError if a request of this size could never be finished, even alone in the pool.

        The last token's keys and values are never needed, hence the - 1. Upstream makes sure at start-up that one
        sequence of `max_model_len` fits; here the pool may be smaller, so each request is looked at.
        """
        longest = self.max_model_len if max_tokens is None else min(num_prompt_tokens + max_tokens, self.max_model_len)
        usable = self.block_pool.num_gpu_blocks - 1
        if longest - 1 > usable * self.block_size:
            raise ValueError(
                f"prompt of {num_prompt_tokens} tokens with max_tokens={max_tokens} needs room for {longest - 1} "
                f"tokens, but the KV cache holds {usable * self.block_size} (num_blocks={usable + 1}, "
                f"block_size={self.block_size}): shorten it, or allow more blocks"
            )

    def free(self, request: Request) -> None:
        """Give back the request's blocks, last block first, so that the tail of a sequence is reused first."""
        table = self.req_to_blocks.pop(request.request_id, None)
        if table is not None:
            self.block_pool.free_blocks(reversed(table.blocks))

    def evict_after(self, request: Request, num_valid_tokens: int) -> None:
        """Make those blocks of the request unfindable that hold anything beyond its first `num_valid_tokens` tokens.

        For blocks that were made findable and will never be filled: their request was preempted in the very step
        that was to fill them, or its forward pass failed. The pinned release does not do this when the priority
        policy preempts a request already scheduled in the same step, so that a later request can hit a block that
        nobody wrote.
        """
        table = self.req_to_blocks.get(request.request_id)
        if table is not None:
            self.block_pool.evict_blocks(table.blocks[num_valid_tokens // self.block_size : table.num_cached])

    def get_blocks(self, request_id: str) -> list[KVCacheBlock]:
        """The request's block table, as blocks (a copy)."""
        table = self.req_to_blocks.get(request_id)
        return list(table.blocks) if table else []

    def get_block_ids(self, request_id: str) -> list[int]:
        """The request's block table: entry i is the physical block of its tokens from i * block_size on."""
        table = self.req_to_blocks.get(request_id)
        return [block.block_id for block in table.blocks] if table else []

    def reset_prefix_cache(self) -> bool:
        """Forget all contents; False, and nothing done, while a request holds blocks."""
        return self.block_pool.reset_prefix_cache()
