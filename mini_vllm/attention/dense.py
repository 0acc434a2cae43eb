"""Reference attention: one request at a time, every key read slot by slot, the whole mask written out. Slow and plain.

It is the judge of the fast backends in tests; nothing else should use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.metadata import Array, AttentionMetadata


class DenseBackend:
    """Arguments as for every backend: see `attention/registry.py`."""

    def __init__(self, kv_cache: KVCache, num_heads: int, sliding_windows: Sequence[int | None]) -> None:
        self.kv_cache, self.num_heads, self.sliding_windows = kv_cache, num_heads, tuple(sliding_windows)

    def begin_step(self, metadata: AttentionMetadata) -> Callable[..., Array]:
        """The callable for this step."""

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            self.kv_cache.write(layer, metadata.slot_mapping, k, v)
            out = np.empty(q.shape, q.dtype)
            for row in range(metadata.num_reqs):
                first, last = metadata.query_start_loc[row : row + 2]
                out[first:last] = self._one(layer, q[first:last], metadata, row)
            return out.reshape(len(q), -1)

        return attn

    def _one(self, layer: int, q: Array, metadata: AttentionMetadata, row: int) -> Array:
        size, seq_len = self.kv_cache.block_size, int(metadata.seq_lens[row])
        where = [(int(metadata.block_tables[row, i // size]), i % size) for i in range(seq_len)]
        key: Any = np.stack([self.kv_cache.key(layer)[block, offset] for block, offset in where])
        value: Any = np.stack([self.kv_cache.value(layer)[block, offset] for block, offset in where])
        group = self.num_heads // self.kv_cache.num_kv_heads
        key, value = np.repeat(key, group, axis=1), np.repeat(value, group, axis=1)
        query_pos = np.arange(seq_len - len(q), seq_len)[:, None]
        key_pos = np.arange(seq_len)[None, :]
        visible = key_pos <= query_pos
        window = self.sliding_windows[layer]
        if window is not None:
            visible &= key_pos > query_pos - window
        scores = np.einsum("qhd,khd->hqk", q, key) * q.shape[-1] ** -0.5
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, value)
