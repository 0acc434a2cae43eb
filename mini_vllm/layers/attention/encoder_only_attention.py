"""Attention in which every token of a prompt sees every other, earlier or later, and nothing is kept for a next step.

There is no KV cache: a prompt is computed whole, in one step. Prompts of one length are computed together.
Upstream twin: `vllm/model_executor/layers/attention/encoder_only_attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.utils.arrays import Array


class EncoderOnlyAttention:
    """The attention of an encoder, in the place of a backend.

    Args:
        sliding_windows: for each layer how far to either side a token sees, None: all of its prompt.

    Upstream: upstream/vllm/model_executor/layers/attention/encoder_only_attention.py:51 — `EncoderOnlyAttention`.
    """

    def __init__(self, sliding_windows: Sequence[int | None]) -> None:
        self.sliding_windows = sliding_windows

    def begin_step(self, metadata: AttentionMetadata) -> Callable[[int, Array, Array, Array], Array]:
        """The callable for a step: (layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]."""
        starts = np.asarray(metadata.query_start_loc)
        lens = np.diff(starts)
        groups = [
            (starts[:-1][lens == n][:, None] + np.arange(n), int(n)) for n in np.unique(lens)
        ]  # rows [prompts, n] of all prompts of n tokens

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            out = np.empty_like(q)
            for rows, n in groups:
                out[rows] = _attend(q[rows], k[rows], v[rows], _mask(n, self.sliding_windows[layer]))
            return out.reshape(len(q), -1)

        return attn


def _attend(q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    """[P, L, Hq, D], [P, L, Hkv, D] twice -> [P, L, Hq, D]. mask: [L, L], True where a query must not look."""
    repeats = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    if repeats > 1:
        k, v = (np.repeat(x, repeats, axis=1) for x in (k, v))
    scores = (q * q.dtype.type(q.shape[-1] ** -0.5)) @ k.transpose(0, 1, 3, 2)
    if mask is not None:
        scores[..., mask] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return ((scores @ v) / scores.sum(axis=-1, keepdims=True)).transpose(0, 2, 1, 3)


def _mask(n: int, window: int | None) -> Array | None:
    if window is None or window >= n - 1:
        return None
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return apart > window
