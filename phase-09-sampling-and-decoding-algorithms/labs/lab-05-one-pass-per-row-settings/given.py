"""One row, step by step: the reference of lab 09-05. Given: nothing to edit here.

It is lab 00-03 with min-p, for a row of float64 logits. What `sample_batch` has to do for a whole batch, this does for
one request, with as little haste as it can.
"""

from __future__ import annotations

import numpy as np


def sample_row(
    logits: np.ndarray,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    generator: np.random.Generator | None,
) -> int:
    """One token of one request. Settings as `sample_batch` has them."""
    scores = np.array(logits, dtype=np.float64)
    if temperature == 0:
        return int(scores.argmax())
    scores = (scores - scores.max()) / temperature
    weights = np.exp(scores)
    weights[weights < min_p] = 0.0  # the likeliest token weighs 1
    if 0 < top_k < len(weights):
        kth = np.sort(weights)[-top_k]
        weights[weights < kth] = 0.0
    if top_p < 1:
        upwards = np.argsort(weights, kind="stable")  # of equals the lower id comes first
        mass = np.cumsum(weights[upwards])
        dropped = mass <= (1 - top_p) * mass[-1]
        dropped[-1] = False
        weights[upwards[dropped]] = 0.0
    assert generator is not None
    return int((weights / generator.standard_exponential(len(weights))).argmax())
