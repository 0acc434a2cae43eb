"""The block tables of layers that look at the encoder's output: as many blocks as it has tokens, taken once.

Upstream twin: `vllm/v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from mini_vllm.request import Request
from mini_vllm.utils.math_utils import cdiv


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Its "tokens" are those of the encoder, which all come with the request's first step. Nothing is found again: what
    is in a block belongs to one request.

    Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:1122 — `CrossAttentionManager`.
    """

    is_plain = False
    counts_encoder_tokens = True

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[KVCacheBlock], num_local_computed_tokens: int,
        num_external_computed_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Nothing: there are no hits. Raises ValueError where there are."""
        if new_computed_blocks:
            raise ValueError(f"request {request_id!r}: blocks of cross attention cannot be prefix hits")

    def get_num_blocks_for(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """Those of the encoder's tokens."""
        return cdiv(num_encoder_tokens, self.block_size)

    def cache_blocks(self, request: Request, num_tokens: int, alignment_tokens: int = 0) -> NoReturn:
        """Raises ValueError: under prefix caching a model with cross attention is not served."""
        raise ValueError("enable_prefix_caching must be False for a model with cross attention, got True")

    @classmethod
    def find_longest_cache_hit(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises ValueError, as `cache_blocks`."""
        raise ValueError("enable_prefix_caching must be False for a model with cross attention, got True")
