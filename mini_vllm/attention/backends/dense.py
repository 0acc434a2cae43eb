"""Plain attention, as a textbook has it: one request at a time, all its keys side by side, the whole mask written out.

Read this backend first: the others compute the same. It judges them in tests, and `enforce_eager=True` runs it.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionStep,
    plan_without_padding,
    tokens_to_write,
)
from mini_vllm.utils.arrays import Array

QUERIES = 256
"""Of a long prompt so many tokens at a time, so that the scores stay small."""


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
                start, stop = metadata.query_start_loc[row : row + 2].tolist()
                seq_len = int(metadata.seq_lens[row])
                keys_and_values = self.kv_cache.read(layer, metadata.block_tables[row], seq_len)
                key, value = (self._of_query_heads(x) for x in keys_and_values)
                for first in range(start, stop, QUERIES):
                    last = min(first + QUERIES, stop)
                    positions = np.arange(first, last) + seq_len - stop
                    out[first:last] = self._attend(q[first:last], positions, key, value, layer)
            return out.reshape(len(q), -1)

        return attn

    def _of_query_heads(self, x: Array) -> Array:
        """[S, Hkv, D] -> [Hq, S, D]: a KV head serves `group` query heads."""
        return np.repeat(x, self.group, axis=1).transpose(1, 0, 2)

    def _attend(self, q: Array, positions: Array, key: Array, value: Array, layer: int) -> Array:
        """q [n, Hq, D] at these positions of its request -> [n, Hq, D]."""
        key_positions, window, sinks = np.arange(key.shape[1]), self.sliding_windows[layer], self.sinks_of(layer)
        visible = key_positions <= positions[:, None]
        if window is not None:
            visible &= key_positions > positions[:, None] - window
        scores = self.cap(q.transpose(1, 0, 2) @ key.transpose(0, 2, 1) * self.scale)
        scores = np.where(visible, scores, -np.inf)
        if sinks is not None:  # one more key, whose value is zero
            sink = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([sink, scores], axis=-1)
            value = np.concatenate([np.zeros_like(value[:, :1]), value], axis=1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ value).transpose(1, 0, 2)
