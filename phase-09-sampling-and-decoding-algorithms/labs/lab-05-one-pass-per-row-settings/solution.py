"""Lab 09-05: the tokens of a whole batch, each row with settings of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def predicted_ratio() -> float:
    """Your prediction, made before you write anything. 32 rows of 4,096 logits each; numpy's `partition`, for the 50
    largest of each row. First on rows as a model makes them. Then on the same rows after top-k 50: the 50 largest are
    as they were, and all others are -inf. How many times as long does the second take as the first? (Below 1: faster.)
    """
    return 10.0


def sample_batch(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
    generators: Sequence[np.random.Generator | None],
) -> np.ndarray:
    """The next token of each row: what `sample_row` of `given.py` says to the row alone, for all rows in one pass.

    "One pass" means that the number of Python steps does not grow with the batch, but for the one draw of each row.
    Rows with ties at an edge may cost steps of their own. How top-p finds its edge is your decision.

    Args:
        logits: [B, V], float32 or float64; -inf where a token is forbidden. Left as they are, as all arguments;
            computed with in float64.
        temperature: [B] float64; 0 is greedy: the largest logit, the lowest id among equals, nothing else counts.
        top_k: [B] int64; below 1, or V and more: off. All tokens equal to the k-th stay.
        top_p: [B] float64 in (0, 1]; 1: off. The token that crosses p stays; of equal ones at the edge the higher ids.
        min_p: [B] float64 in [0, 1]; 0: off.
        generators: B streams. A row that is not greedy takes V standard exponentials from its own, whatever is masked;
            a greedy one takes none, and may have None.

    Returns:
        [B] int64.

    Raises:
        ValueError, before any stream has moved; of several bad rows the first is named: "top_k must have 4 entries, one
            a row, got 3", and so for every argument but the logits; "row 3 has a NaN in its logits"; "row 3 has no
            token to sample: all logits are -inf"; "row 2 samples at random but has no generator."
    """
    _refuse(logits, temperature, top_k, top_p, min_p, generators)
    chosen = logits.argmax(axis=1)
    rows = np.flatnonzero(temperature > 0)
    if not len(rows):
        return chosen
    weights = logits[rows].astype(np.float64)
    weights -= weights.max(axis=1, keepdims=True)
    weights /= temperature[rows, None]
    np.exp(weights, out=weights)
    if (min_p[rows] > 0).any():
        weights[weights < min_p[rows, None]] = 0.0
    _keep_top_k(weights, top_k[rows])
    _keep_top_p(weights, top_p[rows])
    noise = np.stack([generators[row].standard_exponential(weights.shape[1]) for row in rows])  # type: ignore[union-attr]
    chosen[rows] = (weights / noise).argmax(axis=1)
    return chosen


def _refuse(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
    generators: Sequence[np.random.Generator | None],
) -> None:
    """Raise for what cannot be sampled."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "generators": generators}
    for name, values in given.items():
        if len(values) != len(logits):
            raise ValueError(f"{name} must have {len(logits)} entries, one a row, got {len(values)}")
    largest = logits.max(axis=1)
    alone = np.array([generator is None for generator in generators], dtype=bool) & (temperature > 0)
    bad = ~(largest > -np.inf) | alone
    if bad.any():
        row = int(bad.argmax())
        said = "samples at random but has no generator."
        if np.isnan(largest[row]):
            said = "has a NaN in its logits"
        elif largest[row] == -np.inf:
            said = "has no token to sample: all logits are -inf"
        raise ValueError(f"row {row} {said}")


def _keep_top_k(weights: np.ndarray, k: np.ndarray) -> None:
    """Set the weights below each row's k-th largest to 0, in place; only among the rows that ask for it."""
    vocab_size = weights.shape[1]
    rows = np.flatnonzero((k > 0) & (k < vocab_size))
    if len(rows):
        mine, at = weights[rows], vocab_size - k[rows]
        kth = np.take_along_axis(np.partition(mine, np.unique(at), axis=1), at[:, None], axis=1)
        weights[rows] = np.where(mine < kth, 0.0, mine)


def _keep_top_p(weights: np.ndarray, p: np.ndarray) -> None:
    """Set the weights outside each row's nucleus to 0, in place. Only what is above 0 is brought into order."""
    rows = np.flatnonzero(p < 1)
    if not len(rows):
        return
    mine = weights[rows]
    alive = mine > 0
    counts = alive.sum(axis=1)
    width = counts.max()
    survivors = np.zeros((len(rows), width))
    survivors[np.arange(width) >= width - counts[:, None]] = mine[alive]
    survivors.sort(axis=1)
    mass = survivors.cumsum(axis=1)
    dropped = (mass <= (1 - p[rows, None]) * mass[:, -1:]).sum(axis=1).clip(max=width - 1)
    edge = np.take_along_axis(survivors, dropped[:, None], axis=1)
    equals_out = dropped - (survivors < edge).sum(axis=1)
    gone = mine < edge
    for row in np.flatnonzero(equals_out > 0):
        gone[row, np.flatnonzero(mine[row] == edge[row])[: equals_out[row]]] = True
    weights[rows] = np.where(gone, 0.0, mine)
