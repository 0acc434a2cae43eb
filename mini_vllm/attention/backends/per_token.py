"""Attention of one query token at a time, for `VLLM_BATCH_INVARIANT=1`.

The token at position t looks at t + 1 keys, whatever stands beside it in the batch and however its prompt was cut: so
its products have shapes that depend on t alone, and so do their bits. The price is a loop over tokens. Upstream has no
such backend: its kernels walk over the keys in tiles of one size, and the switch takes the split of long sequences from
them (`vllm/v1/attention/backends/flash_attn.py`, `num_splits`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mini_vllm.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionSelectorConfig,
    AttentionStep,
    plan_without_padding,
    tokens_to_write,
)
from mini_vllm.utils.arrays import Array


class PerTokenBackend(AttentionBackend):
    """Arguments as for every backend: see `attention/backend.py`."""

    name = "per_token"
    has_sink_support = True
    supported_kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto",)

    @classmethod
    def validate_configuration(cls, cfg: AttentionSelectorConfig) -> list[str]:
        """As every backend, and batch-invariant."""
        return super().validate_configuration(cfg._replace(use_batch_invariant=False))

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """The callable for this step."""
        return plan_without_padding(self._plan, metadata)

    def _plan(self, metadata: AttentionMetadata) -> AttentionStep:
        tokens, slots = tokens_to_write(metadata)
        starts = metadata.query_start_loc.tolist()
        lens = metadata.seq_lens.tolist()

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            self.kv_cache.write(layer, slots, k[tokens], v[tokens])
            out = np.empty((len(q), self.num_kv_heads, self.group, self.head_dim), q.dtype)
            queries = np.ascontiguousarray(q).reshape(out.shape)
            for row, seq_len in enumerate(lens):
                keys_and_values = self.kv_cache.read(layer, metadata.block_tables[row], seq_len)
                key, value = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in keys_and_values)  # [Hkv, seq_len, D]
                first, last = starts[row], starts[row + 1]
                for token in range(first, last):
                    end = seq_len - last + token + 1
                    window = self.sliding_windows[layer]
                    seen = slice(0 if window is None else max(0, end - window), end)
                    out[token] = self._attend(queries[token], key[:, seen], value[:, seen], self.sinks_of(layer))
            return out.reshape(len(q), -1)

        return attn

    def _attend(self, q: Array, key: Array, value: Array, sinks: Array | None) -> Array:
        """q [Hkv, group, D] of one token, key and value [Hkv, n, D] -> [Hkv, group, D]."""
        scores = np.matmul(q, key.swapaxes(1, 2))
        scores *= self.scale
        self.cap(scores)
        largest = scores.max(axis=-1, keepdims=True)
        if sinks is not None:
            sinks = sinks.reshape(self.num_kv_heads, self.group, 1)
            largest = np.maximum(largest, sinks)
        weights = np.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True)
        if sinks is not None:  # one more key, whose value is zero
            total += np.exp(sinks - largest)
        weights /= total
        mixed: Array = np.matmul(weights, value)
        return mixed
