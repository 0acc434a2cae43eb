"""The KV cache of one rank as transfers see it: which bytes belong to which tokens and heads.

Upstream registers the memory with NIXL, and lists descriptors of it:
upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:788 — `register_kv_caches`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.nixl.tp_mapping import ReadSpec
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.transports import Freight
from mini_vllm.utils.arrays import Array


class RegisteredCache:
    """Args:
        kv_caches: layer name -> [num_blocks, block_size, 2, num_kv_heads, head_dim], or [num_blocks, block_size, 1, 1,
            latent_dim] of MLA.

    Raises:
        ValueError: the layers differ in shape or type.
    """

    def __init__(self, kv_caches: Mapping[str, Array]) -> None:
        self.layers = [cache.reshape(*cache.shape[:2], -1, *cache.shape[-2:]) for cache in kv_caches.values()]
        kinds = {(cache.shape, cache.dtype.str) for cache in self.layers}
        if len(kinds) != 1:
            raise ValueError(
                f"all layers must have caches of one shape and type for NixlConnector, got {sorted(kinds)}"
            )
        self.num_blocks, self.block_size, self.num_rows, self.num_heads, self.head_dim = self.layers[0].shape
        self.dtype = self.layers[0].dtype
        self._slots = [cache.reshape(-1, *cache.shape[2:]) for cache in self.layers]

    @property
    def block_len(self) -> int:
        """Bytes of a block of one layer."""
        return self.block_size * self.num_rows * self.num_heads * self.head_dim * self.dtype.itemsize

    def freight(self, num_blocks: int, num_heads: int, block_size: int | None = None) -> Freight:
        """Of a read of so many blocks, by default of this cache's block size."""
        size = self.block_size if block_size is None else block_size
        shape = num_blocks, size, self.num_rows, num_heads, self.head_dim
        return Freight(len(self.layers), shape, self.dtype)

    def gather(self, layer: int, block_ids: Array, first_head: int, out: Array) -> None:
        """Copy blocks: heads [first_head, first_head + out.shape[3]) -> out [blocks, block_size, rows, heads, dim]."""
        cache, num_heads = self.layers[layer], out.shape[3]
        if num_heads == self.num_heads:
            cache.take(block_ids, axis=0, out=out, mode="clip")
        else:
            out[...] = cache[block_ids][:, :, :, first_head : first_head + num_heads]

    def scatter(self, layer: int, slots: Array, spec: ReadSpec, values: Array) -> None:
        """Write heads of tokens: values [tokens, rows, heads, dim] -> slots [tokens]."""
        self._slots[layer][slots, :, spec.local_head : spec.local_head + spec.num_heads] = values

    def slot_mapping(self, block_ids: Sequence[int], first_token: int, num_tokens: int) -> Array:
        """Slots of the tokens [first_token, num_tokens), whose first one is in the first of these blocks."""
        start = first_token // self.block_size * self.block_size
        tokens = np.arange(first_token, num_tokens) - start
        return np.asarray(block_ids, np.int64)[tokens // self.block_size] * self.block_size + tokens % self.block_size


def get_mapped_blocks(block_ids: Sequence[int], block_size: int, first_token: int, num_tokens: int) -> tuple[int, int]:
    """Which of a prompt's blocks hold the tokens [first_token, num_tokens): (first index, one after the last).

    Args:
        block_ids: of the whole prompt, in its order. block_size: of these blocks; that of the reader may be another.

    Raises:
        ValueError: there are not so many.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:2246 — `get_mapped_blocks`, which
    splits the reader's blocks into pieces of the size of P's, and so needs the first to be a multiple of the second.
    """
    stop = -(-num_tokens // block_size)
    if stop > len(block_ids):
        raise ValueError(
            f"{num_tokens} tokens are in {stop} blocks of {block_size}, got {len(block_ids)} remote_block_ids"
        )
    return first_token // block_size, stop
