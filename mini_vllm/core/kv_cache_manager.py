"""Which blocks belong to which request: what the scheduler asks of the paged KV cache.

A request has one block table for each KV cache group. Most models have one group; where some layers look at a window
alone, there is a group for those (`kv_cache_coordinator.py`, and a manager for each type of layer).
Upstream twin: `vllm/v1/core/kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_coordinator import get_kv_cache_coordinator
from mini_vllm.core.kv_cache_groups import make_kv_cache_config
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.distributed.kv_events import KVCacheEvent
from mini_vllm.kv_cache_interface import KVCacheConfig
from mini_vllm.metrics.stats import PrefixCacheStats
from mini_vllm.request import Request


@dataclass(slots=True)
class KVCacheBlocks:
    """Blocks of one request: `blocks[i][j]` is block j of KV cache group i.

    Upstream: upstream/vllm/v1/core/kv_cache_manager.py:26 — `KVCacheBlocks`.
    """

    blocks: tuple[Sequence[KVCacheBlock], ...]

    def __iter__(self) -> Iterator[KVCacheBlock]:
        raise TypeError("KVCacheBlocks has a list of blocks for each KV cache group: .blocks[0] is the first group's")

    @overload
    def get_block_ids(self, allow_none: Literal[False] = False) -> tuple[list[int], ...]: ...
    @overload
    def get_block_ids(self, allow_none: Literal[True]) -> tuple[list[int], ...] | None: ...
    def get_block_ids(self, allow_none: bool = False) -> tuple[list[int], ...] | None:
        """The ids, one list for each group; with `allow_none` None where there is no block at all."""
        if allow_none and not any(self.blocks):
            return None
        return tuple([[block.block_id for block in group] for group in self.blocks])


class KVCacheManager:
    """Gives requests the slots they are about to write, and finds what has been computed before.

    Args:
        num_blocks: blocks in the pool, the null block included.
        block_size: tokens per block.
        enable_caching: find equal prefixes again (`enable_prefix_caching` of the engine).
        max_model_len: cap on the tokens of one request.
        block_pool: makes the pool from the number of blocks and `enable_caching`.
        kv_cache_config: the groups and the number of blocks, instead of `num_blocks` and `block_size`, which mean one
            group of full attention.
        max_num_batched_tokens: of a step; unset, a request may take its whole prompt at once.
        enable_kv_cache_events: write down what becomes findable and what no longer is (`take_events`).
        use_eagle: a prefix hit leaves its last block out.
        expects_drafts: a step may end behind tokens that exist only after it, so that a request with room may have
            full blocks that nobody can find yet.

    Upstream: upstream/vllm/v1/core/kv_cache_manager.py:110 — `KVCacheManager`.
    """

    def __init__(
        self,
        num_blocks: int | None = None,
        block_size: int | None = None,
        enable_caching: bool = True,
        max_model_len: int = 1 << 62,
        block_pool: Callable[[int, bool], BlockPool] | None = None,
        *,
        kv_cache_config: KVCacheConfig | None = None,
        max_num_batched_tokens: int | None = None,
        enable_kv_cache_events: bool = False,
        use_eagle: bool = False,
        expects_drafts: bool = False,
    ) -> None:
        if kv_cache_config is None:
            if num_blocks is None or block_size is None:
                raise ValueError("give num_blocks and block_size, or kv_cache_config")
            if block_size < 1:
                raise ValueError(f"block_size must be at least 1, got {block_size}")
            kv_cache_config = make_kv_cache_config(num_blocks, block_size)
        self.kv_cache_config, self.max_model_len = kv_cache_config, max_model_len
        self.max_num_batched_tokens = max_model_len if max_num_batched_tokens is None else max_num_batched_tokens
        self.enable_caching = enable_caching
        self.block_pool = (block_pool or BlockPool)(kv_cache_config.num_blocks, enable_caching)
        if enable_kv_cache_events:
            if not isinstance(self.block_pool, BlockPool):
                raise ValueError("enable_kv_cache_events: a block pool that was plugged in writes no events")
            self.block_pool.enable_kv_cache_events = True
        self.coordinator = get_kv_cache_coordinator(
            kv_cache_config, self.block_pool, self.max_num_batched_tokens, max_model_len, enable_caching, use_eagle
        )
        self.num_kv_cache_groups = len(kv_cache_config.kv_cache_groups)
        self.may_lag = (expects_drafts and enable_caching) or not self.coordinator.is_plain
        self.block_size = self.coordinator.alignment_tokens
        self.hash_block_size = self.coordinator.hash_block_size
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in range(self.num_kv_cache_groups)))
        self.prefix_cache_stats = PrefixCacheStats()

    @property
    def usage(self) -> float:
        """Share of the pool in use, from 0.0 to 1.0."""
        return self.block_pool.get_usage()

    @property
    def req_to_blocks(self) -> dict[str, list[KVCacheBlock]]:
        """The block tables of the first group, by request id: all there are in most models."""
        return self.coordinator.single_type_managers[0].req_to_blocks

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Find the longest prefix of the request whose keys and values are in the pool.

        At least one token is left to compute, because its logits are needed: of a prompt that is there as a whole,
        the last block is computed again.

        Returns:
            The blocks, not yet touched, and how many tokens they hold.

        Upstream: upstream/vllm/v1/core/kv_cache_manager.py:194 — `KVCacheManager.get_computed_blocks`.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0
        blocks, num_tokens = self.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        self.prefix_cache_stats.record(request.num_tokens, num_tokens, request.num_preemptions > 0)
        return self._wrap(blocks), num_tokens

    def allocate_slots(
        self, request: Request, num_new_tokens: int, num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None, num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0, delay_cache_blocks: bool = False, num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> KVCacheBlocks | None:  # fmt: skip
        """Give the request slots for `num_new_tokens` more tokens, or refuse and give nothing.

            | computed before | hits | to be loaded | new tokens | lookahead |
                                     ^-- slots are needed for these three

        What has left a sliding window goes back to the pool first, even if the answer is a refusal then.
        Full blocks are made findable here, before their content is computed. That is safe because the forward pass
        of a step writes the keys and values of all its tokens before it reads any.

        Args:
            num_new_tokens: tokens to compute in this step (at least 1; 0 where some are to be loaded).
            num_new_computed_tokens, new_computed_blocks: what `get_computed_blocks` found, for a request that holds
                no blocks yet. `request.num_computed_tokens` does not count them yet.
            num_lookahead_tokens: slots for draft tokens beyond them.
            num_external_computed_tokens: tokens after the hits whose keys and values a KV connector brings.
            delay_cache_blocks: make nothing findable yet: they come later.
            num_encoder_tokens: of the encoder's output, in the step in which it is made: slots of cross attention.
            full_sequence_must_fit: refuse unless *all* tokens of the request fit, not only those of this step.

        Returns:
            The new blocks of each group, perhaps none (the last block had room). None: not enough free blocks.

        Raises:
            ValueError: "num_new_tokens must be at least 1, got N"; also for hits of a request that holds blocks.

        Upstream: upstream/vllm/v1/core/kv_cache_manager.py:236 — `KVCacheManager.allocate_slots`.
        """
        if num_new_tokens < 1 and not num_external_computed_tokens:
            raise ValueError(f"num_new_tokens must be at least 1, got {num_new_tokens}")
        if (
            new_computed_blocks is None
            and not full_sequence_must_fit
            and self._has_room(request, num_new_tokens, num_lookahead_tokens)
        ):
            return self.empty_kv_cache_blocks
        request_id, coordinator = request.request_id, self.coordinator
        hits = self.empty_kv_cache_blocks if new_computed_blocks is None else new_computed_blocks
        if request_id in self.req_to_blocks and any(hits.blocks):
            raise ValueError(f"request {request_id!r} already holds blocks and cannot take prefix hits")
        local = request.num_computed_tokens + num_new_computed_tokens
        computed = min(local + num_external_computed_tokens, self.max_model_len)
        num_tokens = computed + num_new_tokens
        num_slots = min(num_tokens + num_lookahead_tokens, self.max_model_len)
        if full_sequence_must_fit and not self._fits(request, hits, computed, num_encoder_tokens):
            return None
        if coordinator.recycles:
            coordinator.remove_skipped_blocks(request_id, computed)
        needed = coordinator.get_num_blocks_to_allocate(
            request_id, num_slots, hits.blocks, num_encoder_tokens, computed, num_tokens
        )
        if needed > self.block_pool.get_num_free_blocks():
            return None
        if hits is not self.empty_kv_cache_blocks or num_external_computed_tokens:
            coordinator.allocate_new_computed_blocks(request_id, hits.blocks, local, num_external_computed_tokens)
        new_blocks = self._wrap(coordinator.allocate_new_blocks(request_id, num_slots, num_tokens, num_encoder_tokens))
        if self.enable_caching and not delay_cache_blocks:
            coordinator.cache_blocks(request, min(num_tokens, len(request.all_token_ids)))
        return new_blocks

    def _has_room(self, request: Request, num_new_tokens: int, num_lookahead_tokens: int) -> bool:
        """Most calls: a decoding request whose last blocks have room, and which completes no block.

        Nothing leaves a window, nothing becomes findable, and no block is needed: the general way would do nothing.
        """
        computed, name = request.num_computed_tokens, request.request_id
        last = computed + num_new_tokens
        if (self.may_lag or request.num_output_placeholders > 1) and self._lags(request, last):
            return False
        for manager in self.coordinator.single_type_managers:
            size, blocks = manager.block_size, manager.req_to_blocks.get(name)
            if blocks is None or last + num_lookahead_tokens > len(blocks) * size:
                return False
            if last // size != computed // size or (manager.recycles and manager.has_skipped_blocks(blocks, computed)):
                return False
        return True

    def _lags(self, request: Request, last: int) -> bool:
        """Accepted drafts, or one of several results in flight, have filled blocks that nobody can find yet; or there
        are layers for which room in the table does not say that nothing is to do."""
        known, name = min(last, len(request.all_token_ids)), request.request_id
        managers = self.coordinator.single_type_managers
        cached = (not m.is_plain or m.num_cached_block.get(name, 0) < known // m.block_size for m in managers)
        return any(cached)

    def _fits(self, request: Request, hits: KVCacheBlocks, num_computed_tokens: int, num_encoder_tokens: int) -> bool:
        """Whether the free blocks are enough for all tokens that the request has."""
        num_tokens = min(request.num_tokens, self.max_model_len)
        needed = self.coordinator.get_num_blocks_to_allocate(
            request.request_id, num_tokens, hits.blocks, num_encoder_tokens, num_computed_tokens, num_tokens, True
        )
        return needed <= self.block_pool.get_num_free_blocks()

    def _wrap(self, blocks: tuple[list[KVCacheBlock], ...]) -> KVCacheBlocks:
        """The one empty object where there is no block: most steps make none."""
        return KVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the request's first `num_tokens` tokens findable."""
        if self.enable_caching:
            self.coordinator.cache_blocks(request, num_tokens)

    def check_fits(self, num_prompt_tokens: int, max_tokens: int | None, num_encoder_tokens: int = 0) -> None:
        """Raise ValueError if a request of this size could never be finished, even alone in the pool.

        The last token's keys and values are never needed, hence the - 1. Upstream makes sure at start-up that one
        sequence of `max_model_len` fits; here the pool may be smaller, so each request is looked at.
        """
        longest = self.max_model_len if max_tokens is None else min(num_prompt_tokens + max_tokens, self.max_model_len)
        usable, managers = self.block_pool.num_gpu_blocks - 1, self.coordinator.single_type_managers
        needed = sum([manager.get_num_blocks_for(longest - 1, num_encoder_tokens) for manager in managers])
        if needed > usable:
            room = usable * self.block_size
            holds = f"holds {room}" if self.num_kv_cache_groups == 1 else f"has {usable} of the {needed} blocks needed"
            raise ValueError(
                f"prompt of {num_prompt_tokens} tokens with max_tokens={max_tokens} needs room for {longest - 1} "
                f"tokens, but the KV cache {holds} (num_blocks={usable + 1}, "
                f"block_size={self.block_size}): shorten it, or allow more blocks"
            )

    def free(self, request: Request) -> None:
        """Give back the request's blocks, last block first, so that the tail of a sequence is reused first."""
        self.coordinator.free(request.request_id)

    def evict_after(self, request: Request, num_valid_tokens: int) -> None:
        """Make those blocks of the request unfindable that hold anything beyond its first `num_valid_tokens` tokens.

        For blocks that were made findable and will never be filled: their request was preempted in the very step
        that was to fill them, or its forward pass failed. The pinned release does not do this when the priority
        policy preempts a request already scheduled in the same step, so that a later request can hit a block that
        nobody wrote.
        """
        self.coordinator.evict_after(request.request_id, num_valid_tokens)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The request's block tables, as blocks."""
        return self._wrap(self.coordinator.get_blocks(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The request's block tables, one for each group: entry i is the block of its tokens from i * block_size on."""
        blocks = self.coordinator.get_blocks(request_id)
        return tuple([[block.block_id for block in group] for group in blocks])

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """For each group, blocks at the front that all requests share."""
        return self.coordinator.get_num_common_prefix_blocks(running_request_id)

    def reset_prefix_cache(self) -> bool:
        """Forget all contents; False, and nothing done, while a request holds blocks."""
        return self.block_pool.reset_prefix_cache()

    def take_events(self) -> list[KVCacheEvent]:
        """What became findable, and what no longer is, since the last call; empty unless events are enabled."""
        return self.block_pool.take_events() if isinstance(self.block_pool, BlockPool) else []

    def new_step_starts(self) -> None:
        """A plan is begun: states that the last step wrote can be gone on from."""
        if not self.coordinator.is_plain:
            for manager in self.coordinator.single_type_managers:
                manager.new_step_starts()
