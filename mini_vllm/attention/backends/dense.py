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
                key, value = self._read(layer, metadata.block_tables[row], seq_len)
                for first in range(start, stop, QUERIES):
                    last = min(first + QUERIES, stop)
                    positions = np.arange(first, last) + seq_len - stop
                    out[first:last] = self._attend(q[first:last], positions, key, value, self.sliding_windows[layer])
            return out.reshape(len(q), -1)

        return attn

    def _read(self, layer: int, block_table: Array, seq_len: int) -> tuple[Array, Array]:
        """Keys and values of a request, block by block through its table: each [Hq, seq_len, D]."""
        blocks = block_table[: -(-seq_len // self.kv_cache.block_size)]
        shape = (-1, self.num_kv_heads, self.head_dim)
        key = self.kv_cache.key(layer)[blocks].reshape(shape)[:seq_len]
        value = self.kv_cache.value(layer)[blocks].reshape(shape)[:seq_len]
        repeated = [np.repeat(x, self.group, axis=1) for x in (key, value)]  # a KV head serves `group` query heads
        return repeated[0].transpose(1, 0, 2), repeated[1].transpose(1, 0, 2)

    def _attend(self, q: Array, positions: Array, key: Array, value: Array, window: int | None) -> Array:
        """q [n, Hq, D] at these positions of its request -> [n, Hq, D]."""
        key_positions = np.arange(key.shape[1])
        visible = key_positions <= positions[:, None]
        if window is not None:
            visible &= key_positions > positions[:, None] - window
        scores = q.transpose(1, 0, 2) @ key.transpose(0, 2, 1) * self.scale
        scores = np.where(visible, scores, -np.inf)
        if self.sinks is not None:  # one more key, whose value is zero
            sink = np.broadcast_to(self.sinks[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([sink, scores], axis=-1)
            value = np.concatenate([np.zeros_like(value[:, :1]), value], axis=1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ value).transpose(1, 0, 2)
