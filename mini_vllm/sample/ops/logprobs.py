"""Probabilities and their logarithms, row by row. Upstream has no twin: torch computes them."""

from __future__ import annotations

import numpy as np

NEG_INF = -np.inf
"""The logit of a token that must not be chosen."""


def top_logprobs(values: np.ndarray, token: int, count: int) -> dict[int, tuple[float, int]]:
    """The entry of one position: the token that stands there, then the `count` likeliest, each with its rank from 1.

    values: [V] log-probabilities. The rank of `token` counts the tokens at least as likely, itself included, as
    upstream does (upstream/vllm/v1/sample/ops/logprobs.py:11 — `batched_count_greater_than`).
    """
    entry = {token: (float(values[token]), int((values >= values[token]).sum()))}
    for rank, top in enumerate(largest(values, count), start=1):
        entry[int(top)] = (float(values[top]), rank)
    return entry


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest of `values` [V], largest first; ties in order of the index."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    threshold = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis; the maximum is subtracted first, so that `exp` cannot overflow."""
    probs = logits - logits.max(axis=-1, keepdims=True)
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=-1, keepdims=True)
    return probs


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted
