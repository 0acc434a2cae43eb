"""Lab 09-05: the tokens of a whole batch, each row with settings of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def predicted_ratio() -> float:
    """Your prediction, made before you write anything. 32 rows of 4,096 logits each; numpy's `partition`, for the 50
    largest of each row. First on rows as a model makes them. Then on the same rows after top-k 50: the 50 largest are
    as they were, and all others are -inf. How many times as long does the second take as the first? (Below 1: faster.)
    """
    raise NotImplementedError("your prediction: how many times as long")


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
    raise NotImplementedError("a token for each row: the one that the row would get alone")
