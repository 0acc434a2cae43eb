"""Top-k, top-p and the draw. Upstream twin: `vllm/v1/sample/ops/topk_topp_sampler.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.sample.ops.candidates import LARGE_VOCABULARY, draw_among
from mini_vllm.sample.ops.logprobs import NEG_INF, softmax


def apply_top_k_top_p(logits: np.ndarray, top_k: np.ndarray | None, top_p: np.ndarray | None) -> None:
    """Keep the `top_k` likeliest tokens, then of these the smallest set whose probability reaches `top_p`.

    top_k: int[R], 0 (or V and more) = off; top_p: float[R], 1 = off; None = off for all rows. Ties at the k-th value
    all stay. Among equal tokens at the edge of top-p as many stay as are needed, here the higher ids; upstream leaves
    it to a sort that is not stable (upstream/vllm/v1/sample/ops/topk_topp_sampler.py:328).
    """
    vocab_size = logits.shape[1]
    if top_k is not None:
        rows = np.flatnonzero((top_k > 0) & (top_k < vocab_size))
        if rows.size:
            logits[rows] = _top_k_masked(logits[rows], top_k[rows])
    if top_p is not None:
        rows = np.flatnonzero(top_p < 1)
        if rows.size:
            logits[rows] = _top_p_masked(logits[rows], top_p[rows])


def _top_k_masked(logits: np.ndarray, k: np.ndarray) -> np.ndarray:
    """logits with everything below each row's k-th largest value masked.

    One partition for all rows, at the largest k, and a sort of what it leaves: as fast for many k as for one.
    """
    vocab_size, most = logits.shape[1], int(k.max())
    top = np.partition(logits, vocab_size - most, axis=-1)[:, vocab_size - most :]
    if (k != most).any():
        top.sort(axis=-1)
        threshold = np.take_along_axis(top, (most - k)[:, None], axis=-1)
    else:
        threshold = top[:, :1]
    return np.where(logits < threshold, NEG_INF, logits)


def _top_p_masked(logits: np.ndarray, p: np.ndarray) -> np.ndarray:
    """logits with the tail masked: tokens whose cumulated probability, from the least likely up, is <= 1 - p."""
    ascending = np.sort(_gathered(logits), axis=-1)
    width = ascending.shape[1]
    cumulated = np.cumsum(softmax(ascending), axis=-1, dtype=np.float64).astype(logits.dtype)
    edge = (1 - p.astype(logits.dtype))[:, None]
    num_masked = np.minimum((cumulated <= edge).sum(axis=-1), width - 1)  # at least one token stays
    cutoff = np.take_along_axis(ascending, num_masked[:, None], axis=-1)
    masked = logits < cutoff
    # Tokens equal to the cutoff: the sort may have put some of them on the masked side.
    num_ties = num_masked - (ascending < cutoff).sum(axis=-1)
    for row in np.flatnonzero(num_ties > 0):
        ties = np.flatnonzero(logits[row] == cutoff[row])
        masked[row, ties[: num_ties[row]]] = True
    return np.where(masked, NEG_INF, logits)


def _gathered(logits: np.ndarray) -> np.ndarray:
    """The finite values of each row, at its right end: after top-k most of a row is -inf, and need not be sorted.

    A partition would find them too. It is slow where nearly all values are equal, and here they are (lab 09-05).
    """
    alive = logits > NEG_INF
    counts = alive.sum(axis=-1)
    width = max(1, int(counts.max()))
    if width == logits.shape[1]:
        return logits
    gathered = np.full((len(logits), width), NEG_INF, dtype=logits.dtype)
    gathered[np.arange(width) >= width - counts[:, None]] = logits[alive]
    return gathered


def random_sample(
    probs: np.ndarray, generators: Sequence[np.random.Generator | None], use_fp64: bool = False
) -> np.ndarray:
    """One draw per row: argmax(p / e), e ~ Exp(1) from the row's own stream. probs: [R, V]. Returns int64[R].

    Twin: upstream/vllm/v1/sample/ops/topk_topp_sampler.py:395 — `random_sample`. The noise is float64, V numbers a
    draw, so that the stream stands at the same place whichever filters were on. A vocabulary of more than
    `LARGE_VOCABULARY` tokens takes one number a draw, and the noise of each token is a function of it
    (`candidates.py`, which says what `use_fp64` changes).
    """
    if probs.shape[1] > LARGE_VOCABULARY:
        kept = [np.flatnonzero(row) for row in probs]
        drawn = [draw_among(probs[i, ids], ids, generators[i], i, use_fp64) for i, ids in enumerate(kept)]
        return np.array(drawn, dtype=np.int64)
    noise = np.empty(probs.shape, dtype=np.float64)
    for row, generator in enumerate(generators):
        if generator is None:
            raise ValueError(f"row {row} samples at random but has no generator.")
        generator.standard_exponential(out=noise[row])
    np.divide(probs, noise, out=noise)
    return noise.argmax(axis=-1)
