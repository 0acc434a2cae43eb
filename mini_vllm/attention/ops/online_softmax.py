"""Attention over a set of keys as a summary that can be merged: the algebra behind FlashAttention and split-KV.

For one query and keys with scores s_i and values v_i the summary is

    m = max s_i,   denom = sum exp(s_i - m),   acc = sum exp(s_i - m) v_i

Summaries of disjoint sets of keys merge in any order and any grouping, `identity` is the empty set, and `acc / denom`
is the output. So the keys may come block by block (online softmax) or from many workers at once (split-KV).

Arrays are batched over any leading dimensions "...", one summary for each: m and denom [...], acc [..., Dv]; numbers do
as well. Upstream twins: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:361 — `softmax_step`, and
upstream/vllm/v1/attention/ops/triton_unified_attention.py:646 — `reduce_segments`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mini_vllm.utils.arrays import Array


class Summary(NamedTuple):
    """What attention has to remember of the keys that it has seen."""

    m: Any
    denom: Any
    acc: Any


def identity(shape: int | tuple[int, ...], dim: int, dtype: Any = np.float64) -> Summary:
    """No keys seen: m and denom of this shape, acc [*shape, dim]. Merging it changes nothing."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return Summary(np.full(shape, -np.inf, dtype), np.zeros(shape, dtype), np.zeros((*shape, dim), dtype))


def attend_partial(q: Array, k: Array, v: Array, scale: float | None = None, visible: Array | None = None) -> Summary:
    """The summary of q [..., D] over k [..., S, D] and v [..., S, Dv]; leading dimensions broadcast.

    Args:
        scale: of the scores; by default D ** -0.5.
        visible: [..., S], False hides a key. A query that sees none of its keys (or S = 0) has the empty summary.
    """
    part = attend_tile(q[..., None, :], k, v, scale, None if visible is None else visible[..., None, :])
    return Summary(part.m[..., 0], part.denom[..., 0], part.acc[..., 0, :])


def attend_tile(
    q: Array, k: Array, v: Array, scale: float | None = None, visible: Array | None = None,
    cap: Callable[[Array], Array] | None = None,
) -> Summary:  # fmt: skip
    """As `attend_partial` for M queries that share their keys, as one product: q [..., M, D], visible [..., M, S].

    cap: applied to the scaled scores, before keys are hidden.
    """
    if not k.shape[-2]:
        shape = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
        return identity((*shape, q.shape[-2]), v.shape[-1], np.result_type(q, v))
    scores = np.matmul(q, np.swapaxes(k, -1, -2))
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if cap is not None:
        scores = cap(scores)
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    m = scores.max(axis=-1)
    weights = np.exp(scores - _finite(m)[..., None])
    return Summary(m, weights.sum(axis=-1), np.matmul(weights, v))


def merge_two(a: Summary, b: Summary) -> Summary:
    """The summary of both sets of keys: each side is rescaled to the common maximum.

    exp(-inf - 0) is 0, so an empty side adds nothing; the maximum of two empty sides is replaced by 0 in the exponent,
    because -inf - -inf has no value. Upstream guards in the same place
    (upstream/vllm/v1/attention/ops/triton_attention_helpers.py:361 — `softmax_step`).
    """
    m = np.maximum(a.m, b.m)
    scale_a, scale_b = np.exp(a.m - _finite(m)), np.exp(b.m - _finite(m))
    acc = _beside(scale_a, a.acc) * a.acc + _beside(scale_b, b.acc) * b.acc
    return Summary(m, scale_a * a.denom + scale_b * b.denom, acc)


def merge_axis(parts: Summary, axis: int) -> Summary:
    """Merge all summaries along an axis of m (of the leading dimensions): the reduction at the end of split-KV.

    Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:646 — `reduce_segments`.
    """
    axis %= parts.m.ndim
    m = parts.m.max(axis=axis)
    scale = np.exp(parts.m - np.expand_dims(_finite(m), axis))
    return Summary(m, (scale * parts.denom).sum(axis=axis), (scale[..., None] * parts.acc).sum(axis=axis))


def finalize(summary: Summary) -> Any:
    """The output acc / denom, [..., Dv]; zeros where no key was seen."""
    denom = np.asarray(summary.denom)
    return summary.acc / _beside(np.where(denom == 0, 1, denom), summary.acc)


def log_sum_exp(summary: Summary) -> Any:
    """m + log(denom), [...]: the weight of a normalised output. -inf where no key was seen."""
    with np.errstate(divide="ignore"):
        return summary.m + np.log(summary.denom)


def merge_attn_states(
    prefix_output: Array, prefix_lse: Any, suffix_output: Array, suffix_lse: Any
) -> tuple[Array, Any]:
    """Merge two normalised outputs [..., Dv] by their log-sum-exps [...]: what cascade attention does.

    A normalised output can be merged as long as its weight is kept; without it the information is gone.
    Returns (output, lse). Upstream: upstream/vllm/v1/attention/ops/merge_attn_states.py:9 — `merge_attn_states`.
    """
    prefix, suffix = Summary(prefix_lse, 1.0, prefix_output), Summary(suffix_lse, 1.0, suffix_output)
    merged = merge_two(prefix, suffix)
    return finalize(merged), log_sum_exp(merged)


def _beside(x: Any, acc: Any) -> Any:
    """x [...] in the shape that multiplies acc [..., Dv]; where the values are plain numbers, acc has x's own shape."""
    return x if np.ndim(acc) == np.ndim(x) else np.asarray(x)[..., None]


def _finite(m: Any) -> Any:
    """m, with 0 in place of -inf, to be subtracted in an exponent."""
    return np.where(np.isneginf(m), 0.0, m)
