"""The arrays of the paged KV cache: one pool of slots per layer.

A slot holds a token's key and value side by side, so that a block is one contiguous piece: one copy gathers both.
Upstream keeps keys and values apart, (2, num_blocks, block_size, num_kv_heads, head_size):
upstream/vllm/v1/attention/backends/flash_attn.py:140 — `FlashAttentionBackend.get_kv_cache_shape`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.platforms.cpu.memory import aligned_zeros
from mini_vllm.utils.arrays import Array


class KVCache:
    """`data` is [num_layers, num_blocks, block_size, 2, num_kv_heads, head_dim]; index 3 is key, value.

    The pool starts as zeros, and its pages become resident when they are first written. `dtype` is that of the numbers
    that are handed out; `QuantizedKVCache` (`attention/quantized_kv_cache.py`) stores others.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int,
        dtype: str | np.dtype[Any] = "float32",
    ) -> None:  # fmt: skip
        self.num_layers, self.num_blocks, self.block_size = num_layers, num_blocks, block_size
        self.num_kv_heads, self.head_dim = num_kv_heads, head_dim
        self.data = aligned_zeros((num_layers, num_blocks, block_size, 2, num_kv_heads, head_dim), dtype)
        self.dtype = self.data.dtype
        slots = self.data.reshape(num_layers, num_blocks * block_size, 2, num_kv_heads, head_dim)
        self._key_slots = [layer[:, 0] for layer in slots]
        self._value_slots = [layer[:, 1] for layer in slots]
        self._blocks = list(self.data.reshape(num_layers, num_blocks, -1))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.data.nbytes

    def key(self, layer: int) -> Array:
        """Keys of a layer, [num_blocks, block_size, num_kv_heads, head_dim] (a view)."""
        return self.data[layer, :, :, 0]

    def value(self, layer: int) -> Array:
        """Values of a layer, as `key`."""
        return self.data[layer, :, :, 1]

    def slots(self, layer: int) -> tuple[Array, Array]:
        """Keys and values of a layer as flat rows, each [num_blocks * block_size, num_kv_heads, head_dim] (views)."""
        return self._key_slots[layer], self._value_slots[layer]

    def write(self, layer: int, slot_mapping: Array | slice, k: Array, v: Array) -> None:
        """Store k and v, each [T, num_kv_heads, head_dim], in slots `slot_mapping` [T], or a run of slots."""
        self._key_slots[layer][slot_mapping] = k
        self._value_slots[layer][slot_mapping] = v

    def read(self, layer: int, block_table: Array, seq_len: int) -> tuple[Array, Array]:
        """Keys and values of a request, through its block table: copies, each [seq_len, num_kv_heads, head_dim]."""
        blocks = block_table[: -(-seq_len // self.block_size)]
        shape = -1, self.num_kv_heads, self.head_dim
        return self.key(layer)[blocks].reshape(shape)[:seq_len], self.value(layer)[blocks].reshape(shape)[:seq_len]

    def gather(self, layer: int, block_ids: Array, out: Array) -> None:
        """Copy whole blocks: block_ids [N] -> out [N, block_size * 2 * num_kv_heads * head_dim]."""
        self._blocks[layer].take(block_ids, axis=0, out=out, mode="clip")

    def clear_blocks(self, block_ids: Array) -> None:
        """Zero those of these blocks that hold a NaN, so that whoever gets them next cannot read it as padding."""
        for block in block_ids:
            if np.isnan(self.data[:, block]).any():
                self.data[:, block] = 0.0

    def clear_nan(self, block_ids: Array) -> None:
        """Zero each NaN in these blocks and nothing else: rejected drafts left it, and the tokens before them stay."""
        for block in block_ids:
            held = self.data[:, block]
            held[np.isnan(held)] = 0.0
