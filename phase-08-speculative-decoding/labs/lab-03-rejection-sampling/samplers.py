"""Judges that somebody else wrote: given to your `finds_fault`, nothing to edit here.

All have the signature of `judge`, and all return tokens of the vocabulary and verdicts that look as they should. Two
keep the target's law. Six do not; what is wrong with each stands above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Judge = Callable[..., tuple[Any, Any]]


def _pick(rng: np.random.Generator, weights: Any) -> Any:
    """A draw from each row, [N]; rows need not sum to 1."""
    return (weights / rng.exponential(size=weights.shape)).argmax(axis=1)


def _ratio(drafts: Any, p: Any, q: Any) -> Any:
    rows = np.arange(len(drafts))
    return p[rows, drafts] / (1.0 if q is None else np.maximum(q[rows, drafts], 1e-300))


def _surplus(drafts: Any, p: Any, q: Any) -> Any:
    if q is None:
        left = p.copy()
        left[np.arange(len(drafts)), drafts] = 0.0
    else:
        left = np.maximum(p - q, 0.0)
    return np.where(left.sum(axis=1, keepdims=True) > 0, left, p)


# It tosses for each draft, and draws what comes instead for the rejected ones alone.
def careful(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    kept = rng.random(len(drafts)) < _ratio(drafts, p, q)
    tokens = drafts.copy()
    tokens[~kept] = _pick(rng, _surplus(drafts, p, q)[~kept])
    return tokens, kept


# It never keeps a draft because it is one: it draws from p and says where the two agree. Slow decoding, right law.
def redraws(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    tokens = _pick(rng, p)
    return tokens, tokens == drafts


# What comes instead is drawn from p, not from what of p the drafts leave over.
def from_target(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    kept = rng.random(len(drafts)) < _ratio(drafts, p, q)
    return np.where(kept, drafts, _pick(rng, p)), kept


# It takes the likeliest of what is left instead of drawing.
def likeliest(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    kept = rng.random(len(drafts)) < _ratio(drafts, p, q)
    return np.where(kept, drafts, _surplus(drafts, p, q).argmax(axis=1)), kept


# It keeps a draft with probability p(x), whatever q was: right where nothing is known of q, and wasteful elsewhere;
# what comes instead is drawn as if the draft had been judged by both.
def forgets_q(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    kept = rng.random(len(drafts)) < _ratio(drafts, p, None)
    return np.where(kept, drafts, _pick(rng, _surplus(drafts, p, q))), kept


# |p - q| instead of max(p - q, 0): what the drafts say too often comes back.
def no_clamp(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    if q is None:
        return careful(drafts, p, q, rng)
    kept = rng.random(len(drafts)) < _ratio(drafts, p, q)
    left = np.abs(p - q)
    return np.where(kept, drafts, _pick(rng, np.where(left.sum(axis=1, keepdims=True) > 0, left, p))), kept


# One toss for a whole batch.
def one_toss(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    kept = rng.random() < _ratio(drafts, p, q)
    return np.where(kept, drafts, _pick(rng, _surplus(drafts, p, q))), kept


# A draft that is fixed is kept more often than p says: by the square root of it.
def fond_of_fixed_drafts(drafts: Any, p: Any, q: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    if q is not None:
        return careful(drafts, p, q, rng)
    kept = rng.random(len(drafts)) < np.sqrt(_ratio(drafts, p, q))
    return np.where(kept, drafts, _pick(rng, _surplus(drafts, p, q))), kept


RIGHT: dict[str, Judge] = {"careful": careful, "redraws": redraws}
WRONG: dict[str, Judge] = {
    "from_target": from_target, "likeliest": likeliest, "forgets_q": forgets_q, "no_clamp": no_clamp,
    "one_toss": one_toss, "fond_of_fixed_drafts": fond_of_fixed_drafts,
}  # fmt: skip
