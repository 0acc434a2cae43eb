"""Lab 00-03: from a row of logits to one token id, in the order that vLLM uses."""

from __future__ import annotations

import numpy as np

MIN_TEMPERATURE = 0.01


def softmax(logits: np.ndarray) -> np.ndarray:
    """Turn scores into probabilities: a logit that is larger by d stands for e^d times the probability.

    Args:
        logits: [vocab] scores of any size, an array or a list; -inf stands for "impossible".

    Returns:
        [vocab] float64, summing to 1, without NaN however large or small the scores; exactly 0 for "impossible". A new
        array.
    """
    scores = np.asarray(logits, dtype=np.float64)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def apply_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Keep the `k` largest logits; set the others to -inf.

    Logits equal to the k-th largest are all kept, so that ties may leave more than `k`, as upstream does.

    Args:
        logits: [vocab] scores, an array or a list.
        k: how many to keep; k <= 0 or k >= vocab keeps all.

    Returns:
        [vocab] float64. A new array; `logits` is not modified.
    """
    scores = np.array(logits, dtype=np.float64)
    if k <= 0 or k >= scores.size:
        return scores
    kth_largest = np.partition(scores, -k)[-k]
    scores[scores < kth_largest] = -np.inf
    return scores


def apply_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep the smallest set of most likely tokens whose probabilities sum to at least `p`; set the others to -inf.

    The token that crosses `p` is part of the set. At least one token is always kept. Which of two equally likely tokens
    is kept, where one suffices, is left open.

    Args:
        logits: [vocab] scores, an array or a list.
        p: probability mass to keep, in [0, 1]; 1 keeps all, 0 keeps the one most likely token.

    Returns:
        [vocab] float64. A new array; `logits` is not modified.
    """
    scores = np.array(logits, dtype=np.float64)
    if p >= 1.0:
        return scores
    order = np.argsort(-scores, kind="stable")
    probs = softmax(scores)[order]
    mass_before = np.cumsum(probs) - probs
    dropped = mass_before >= p
    dropped[0] = False
    scores[order[dropped]] = -np.inf
    return scores


def sample(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | np.random.Generator | None = None,
) -> int:
    """Choose one token id, as vLLM does.

    Temperature 0 is greedy: the largest logit, the lowest index among equals, and nothing is drawn. The other knobs are
    checked all the same, and then change nothing. Above 0 the knobs work in vLLM's order: temperature, top-k, top-p.
    The token is then drawn by an exponential race over the whole vocabulary: one call of `rng.exponential(size=vocab)`,
    whatever was filtered out before.

    Args:
        logits: [vocab] scores, an array or a list; not modified.
        temperature: 0 for greedy, else > 0; values below 0.01 count as 0.01.
        top_k: see `apply_top_k`.
        top_p: in (0, 1]; see `apply_top_p`.
        seed: an int starts a new stream (the same int, the same token); a Generator is used and advanced; None draws
            fresh entropy from the operating system.

    Returns:
        A token id, a plain int in [0, vocab).

    Raises:
        ValueError: "temperature must be 0 or more, got -0.1", for NaN too; "top_p must be in (0, 1], got 1.5", for NaN
            too and whatever the temperature.
    """
    if not temperature >= 0.0:
        raise ValueError(f"temperature must be 0 or more, got {temperature}")
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")
    scores = np.asarray(logits, dtype=np.float64)
    if temperature == 0.0:
        return int(np.argmax(scores))
    scores = scores / max(temperature, MIN_TEMPERATURE)
    scores = apply_top_k(scores, top_k)
    scores = apply_top_p(scores, top_p)
    probs = softmax(scores)
    rng = np.random.default_rng(seed)
    return int(np.argmax(probs / rng.exponential(size=probs.size)))
