"""Attention over latents: one small row a token in the cache, which is key and value of all heads at once.

The model has moved the two matrices between latents and heads to the query and behind the attention ("absorbed"), so
that what is left is attention with one KV head whose value is the first part of its key. Upstream runs a decode step
this way and widens the latents to heads for a prefill, where that saves work; here both are the same sum.

Upstream twin: `vllm/model_executor/layers/attention/mla_attention.py`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mini_vllm.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionStep,
    plan_without_padding,
    tokens_to_write,
)
from mini_vllm.utils.arrays import Array

MAX_SCORES = 1 << 19
"""Scores computed at a time."""


class MLABackend(AttentionBackend):
    """Arguments as for every backend: see `attention/backend.py`; the cache is an `MLACache`.

    The step's callable takes q [T, Hq, D], the new latents [T, 1, D] and their values [T, 1, Dv], which are the first
    part of the latents, and gives [T, Hq * Dv].
    """

    name = "mla"
    is_mla = True
    supported_kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto",)

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """The callable for this step."""
        return plan_without_padding(self._plan, metadata)

    def _plan(self, metadata: AttentionMetadata) -> AttentionStep:
        tokens, slots = tokens_to_write(metadata)
        starts, lens = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            self.kv_cache.write(layer, slots, k[tokens], v[tokens])
            out = np.empty((*q.shape[:2], v.shape[-1]), q.dtype)
            for row, seq_len in enumerate(lens):
                latents = self.kv_cache.read(layer, metadata.block_tables[row], seq_len)[0][:, 0]
                start, stop = starts[row], starts[row + 1]
                step = max(1, MAX_SCORES // (self.num_heads * seq_len))
                for first in range(start, stop, step):
                    last = min(first + step, stop)
                    positions = np.arange(first, last) + seq_len - stop
                    out[first:last] = self._attend(q[first:last], positions, latents, v.shape[-1])
            return out.reshape(len(q), -1)

        return attn

    def _attend(self, q: Array, positions: Array, latents: Array, value_size: int) -> Array:
        """q [n, Hq, D] at these positions, latents [S, D] of all tokens so far -> [n, Hq, Dv]."""
        scores = np.matmul(q.reshape(-1, q.shape[-1]), latents.T).reshape(*q.shape[:2], -1)
        scores *= self.scale
        if len(positions) > 1 or positions[0] + 1 < len(latents):
            hidden = np.arange(len(latents)) > positions[:, None]
            scores += np.where(hidden, -np.inf, 0.0).astype(scores.dtype)[:, None]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        mixed = np.matmul(scores.reshape(-1, len(latents)), latents[:, :value_size])
        return mixed.reshape(*q.shape[:2], value_size) / total
