"""Probabilities and their logarithms, row by row. Upstream has no twin: torch computes them."""

from __future__ import annotations

import numpy as np

NEG_INF = -np.inf
"""The logit of a token that must not be chosen."""


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
