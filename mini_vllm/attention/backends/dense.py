"""Reference attention: one request at a time, every key read slot by slot, the whole mask written out. Slow and plain.

It is the judge of the fast backends in tests; nothing else should use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionStep,
    plan_without_padding,
    tokens_to_write,
)
from mini_vllm.utils.arrays import Array


class DenseBackend(AttentionBackend):
    """Arguments as for every backend: see `attention/backend.py`."""

    name = "dense"
    has_sink_support = True

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """The callable for this step."""
        return plan_without_padding(self._plan, metadata)

    def _plan(self, metadata: AttentionMetadata) -> AttentionStep:
        tokens, slots = tokens_to_write(metadata)

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            self.kv_cache.write(layer, slots, k[tokens], v[tokens])
            out = np.empty(q.shape, q.dtype)
            for row in range(metadata.num_reqs):
                first, last = metadata.query_start_loc[row : row + 2]
                out[first:last] = self._one(layer, q[first:last], metadata, row)
            return out.reshape(len(q), -1)

        return attn

    def _one(self, layer: int, q: Array, metadata: AttentionMetadata, row: int) -> Array:
        size, seq_len = self.kv_cache.block_size, int(metadata.seq_lens[row])
        where = [(int(metadata.block_tables[row, i // size]), i % size) for i in range(seq_len)]
        keys, values = self.kv_cache.key(layer), self.kv_cache.value(layer)
        key: Any = np.stack([keys[block, offset] for block, offset in where])
        value: Any = np.stack([values[block, offset] for block, offset in where])
        key, value = np.repeat(key, self.group, axis=1), np.repeat(value, self.group, axis=1)
        query_pos = np.arange(seq_len - len(q), seq_len)[:, None]
        key_pos = np.arange(seq_len)[None, :]
        visible = key_pos <= query_pos
        window = self.sliding_windows[layer]
        if window is not None:
            visible &= key_pos > query_pos - window
        scores = np.einsum("qhd,khd->hqk", q, key) * self.scale
        scores = np.where(visible, scores, -np.inf)
        if self.sinks is not None:  # one more key, whose value is zero
            sink = np.broadcast_to(self.sinks[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([sink, scores], axis=-1)
            value = np.concatenate([np.zeros_like(value[:1]), value])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, value)
