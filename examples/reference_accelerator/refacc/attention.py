"""Attention on the device: each query looks at the keys that it may see, and at no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mini_vllm import AttentionBackend, AttentionMetadata
from refacc.device import Array, current_device


class RefAccAttention(AttentionBackend):
    """A request's keys and values are read once for all of its queries, and once more by nobody."""

    name = "refacc_attn"
    supported_dtypes = ("float64",)
    supported_kv_cache_dtypes = ("auto",)

    def begin_step(self, metadata: AttentionMetadata) -> Callable[[int, Array, Array, Array], Array]:
        """The attention of a step: (layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]."""
        device = current_device()
        device.shape(metadata.query_lens, metadata.seq_lens)

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            self.kv_cache.write(layer, metadata.slot_mapping, k, v)
            device.kv(written=k.nbytes + v.nbytes)
            out = np.empty_like(q)
            for row in range(metadata.num_reqs):
                start, stop = metadata.query_start_loc[row : row + 2].tolist()
                seq_len = int(metadata.seq_lens[row])
                key, value = self.kv_cache.read(layer, metadata.block_tables[row], seq_len)
                device.kv(read=key.nbytes + value.nbytes)
                for token in range(start, stop):
                    last = seq_len - (stop - token) + 1
                    out[token] = self._attend(q[token], key[:last], value[:last], self.sliding_windows[layer])
            return out.reshape(len(q), -1)

        return attn

    def _attend(self, q: Array, key: Array, value: Array, window: int | None) -> Array:
        """q [Hq, D] of the last of these tokens; key and value [S, Hkv, D] -> [Hq, D]."""
        device = current_device()
        if window is not None:
            key, value = key[-window:], value[-window:]
        heads = q.reshape(self.num_kv_heads, self.group, self.head_dim)
        scores = device.matmul(heads, key.transpose(1, 2, 0)) * self.scale  # [Hkv, group, S]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        device.elementwise(6, weights)  # scale, largest, difference, exponential, sum, quotient
        return device.matmul(weights, value.transpose(1, 0, 2)).reshape(q.shape)
