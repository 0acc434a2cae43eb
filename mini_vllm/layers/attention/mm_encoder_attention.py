"""Attention of an encoder of media: every part of an item sees every other part of that item, and nothing is kept.

Upstream twin: `vllm/model_executor/layers/attention/mm_encoder_attention.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.utils.arrays import Array

_MAX_SCORES = 1 << 24
"""Scores that are in memory at a time."""


class MMEncoderAttention:
    """Upstream: upstream/vllm/model_executor/layers/attention/mm_encoder_attention.py:216 — `MMEncoderAttention`."""

    def __init__(self, head_size: int) -> None:
        self.scale = head_size**-0.5

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        """[N, T, heads, D] three times -> [N, T, heads * D]. Queries come in pieces, so that the scores of a large
        item need no more than `_MAX_SCORES` numbers."""
        num, length, heads, _ = q.shape
        out = np.empty(q.shape, q.dtype)
        rows = max(1, _MAX_SCORES // (heads * length))
        for item in range(num):
            keys, values = k[item].transpose(1, 2, 0), v[item].transpose(1, 0, 2)
            for first in range(0, length, rows):
                piece = slice(first, first + rows)
                queries = q[item, piece].transpose(1, 0, 2) * q.dtype.type(self.scale)
                scores = queries @ keys
                scores -= scores.max(axis=-1, keepdims=True)
                np.exp(scores, out=scores)
                out[item, piece] = ((scores @ values) / scores.sum(axis=-1, keepdims=True)).transpose(1, 0, 2)
        return out.reshape(num, length, -1)
