"""The block tables of layers that look at the chunk of the text that a token is in: earlier chunks are given back.

Upstream twin: `vllm/v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_specs import ChunkedLocalAttentionSpec
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, get_cached_block


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """A token looks at its own chunk of `attention_chunk_size` tokens: what is before it goes back to the pool.

    Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:692 — `ChunkedLocalAttentionManager`.
    """

    recycles = True

    def __init__(self, kv_cache_spec: ChunkedLocalAttentionSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.attention_chunk_size = kv_cache_spec.attention_chunk_size

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
        """Null blocks up to the chunk of token `max_length`, whoever has computed them, and from there to the first
        miss. With chunks of 8, blocks of 4 and a `max_length` of 15: two null blocks, and the third if it is found.

        Raises:
            ValueError: under `use_eagle`, and where blocks are not as long as hits are aligned.
        """
        block_size, chunk = kv_cache_spec.block_size, kv_cache_spec.attention_chunk_size
        if use_eagle:
            raise ValueError("use_eagle: a hit of chunked local attention cannot leave out its last block")
        if block_size != alignment_tokens:
            raise ValueError(
                f"chunked local attention needs blocks as long as all others, got {block_size} tokens and "
                f"{alignment_tokens}"
            )
        start = max_length // chunk * chunk // block_size
        computed: tuple[list[KVCacheBlock], ...] = tuple([block_pool.null_block] * start for _ in kv_cache_group_ids)
        for i in range(start, max_length // block_size):
            cached = get_cached_block(block_pool, block_hashes[i], kv_cache_group_ids)
            if cached is None:
                break
            for blocks, block in zip(computed, cached, strict=True):
                blocks.append(block)
        return computed

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """All before the chunk of the next token: of 13 computed tokens and chunks of 8, the first 8; of 7 none.

        Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:789 —
        `ChunkedLocalAttentionManager.get_num_skipped_tokens`.
        """
        return num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size
