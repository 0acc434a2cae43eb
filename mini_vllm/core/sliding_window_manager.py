"""The block tables of layers with a sliding window: what has left the window is given back while the request runs.

Upstream twin: `vllm/v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, align, get_cached_block
from mini_vllm.kv_cache_interface import SlidingWindowSpec
from mini_vllm.utils.math_utils import cdiv


class SlidingWindowManager(SingleTypeKVCacheManager):
    """A token looks at `sliding_window` tokens, its own included: older blocks go back to the pool, and a hit needs
    only the blocks of the last window, wherever it ends.

    Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:542 — `SlidingWindowManager`.
    """

    recycles = True

    def __init__(self, kv_cache_spec: SlidingWindowSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.sliding_window = kv_cache_spec.sliding_window

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[bytes],
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: BlockPool,
        kv_cache_spec: Any,
        alignment_tokens: int,
        use_eagle: bool = False,
    ) -> tuple[list[KVCacheBlock], ...]:
        """From the back: the first run of blocks that is as long as a window, less the token to come.

        A shorter run counts where it begins at the start of the text. use_eagle: a run of one block more, less that.
        """
        block_size, num_found, extra = kv_cache_spec.block_size, 0, int(use_eagle)
        num_needed = cdiv(kv_cache_spec.sliding_window - 1, block_size) + extra
        most = max_length // block_size
        computed = tuple([block_pool.null_block] * most for _ in kv_cache_group_ids)
        for i in range(most - 1, -1, -1):
            cached = get_cached_block(block_pool, block_hashes[i], kv_cache_group_ids)
            if cached is None:
                num_found = 0
                continue
            if not num_found and (i + 1 - extra) * block_size % alignment_tokens:
                continue
            for blocks, block in zip(computed, cached, strict=True):
                blocks[i] = block
            num_found += 1
            if num_found >= num_needed:
                for blocks in computed:
                    del blocks[i + num_found :]
                break
        else:
            for blocks in computed:
                del blocks[num_found:]
            align(computed, block_size, alignment_tokens)
        if use_eagle:
            for blocks in computed:
                del blocks[-1:]
            align(computed, block_size, alignment_tokens)
        return computed

    def _cache_block_mask(self, start: int, stop: int, alignment_tokens: int) -> list[bool] | None:
        """Hits end at multiples of `alignment_tokens`: only the window before such a place is ever looked for."""
        per_segment = alignment_tokens // self.block_size
        tail = cdiv(self.sliding_window - 1, self.block_size)
        if tail >= per_segment:
            return None
        return [i % per_segment >= per_segment - tail for i in range(start, stop)]

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """All before the window of the next token: of 7 computed tokens and a window of 4, the first 4.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:654 —
        `SlidingWindowManager.get_num_skipped_tokens`.
        """
        return max(0, num_computed_tokens - self.sliding_window + 1)
