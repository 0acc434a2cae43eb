"""The paged cache of latents: one row a token and layer, where `KVCache` has a key and a value for each KV head."""

from __future__ import annotations

from typing import Any

from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.platforms.cpu.memory import aligned_zeros
from mini_vllm.utils.arrays import Array


class MLACache(KVCache):
    """`data` is [num_layers, num_blocks, block_size, 1, 1, head_dim]; head_dim counts latent and rotated part.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:354 — `MLAAttentionSpec.real_page_size_bytes`, which has no factor
    of two for the same reason.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, block_size: int, head_dim: int, dtype: str | Any = "float32"
    ) -> None:
        self.num_layers, self.num_blocks, self.block_size = num_layers, num_blocks, block_size
        self.num_kv_heads, self.head_dim = 1, head_dim
        self.data = aligned_zeros((num_layers, num_blocks, block_size, 1, 1, head_dim), dtype)
        self.dtype = self.data.dtype
        self._rows = self.data.reshape(num_layers, num_blocks * block_size, 1, head_dim)
        self._blocks = list(self.data.reshape(num_layers, num_blocks, -1))

    def write(self, layer: int, slot_mapping: Array | slice, k: Array, v: Array) -> None:
        """Store latents k [T, 1, head_dim] in slots `slot_mapping` [T]; v is a part of them."""
        self._rows[layer][slot_mapping] = k

    def key(self, layer: int) -> Array:
        """Latents of a layer, [num_blocks, block_size, 1, head_dim] (a view)."""
        return self.data[layer, :, :, 0]

    def value(self, layer: int) -> Array:
        """The same: whoever reads takes the first part as values."""
        return self.key(layer)

    def slots(self, layer: int) -> tuple[Array, Array]:
        """Latents of a layer as flat rows [num_blocks * block_size, 1, head_dim], twice (views)."""
        return self._rows[layer], self._rows[layer]

    def read(self, layer: int, block_table: Array, seq_len: int) -> tuple[Array, Array]:
        """Latents of a request, through its block table, [seq_len, 1, head_dim], twice: a copy."""
        blocks = block_table[: -(-seq_len // self.block_size)]
        latents = self.key(layer)[blocks].reshape(-1, 1, self.head_dim)[:seq_len]
        return latents, latents
