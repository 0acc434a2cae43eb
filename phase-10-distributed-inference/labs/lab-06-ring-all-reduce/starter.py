"""Lab 10-06: N processes agree on a sum, while each of them sees two neighbours.

Each hop adds in the type of the arrays. Parts are those of `np.array_split` of the flattened array: N of them, the
first ones a number longer where it does not divide.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def predicted_tokens() -> int:
    """Your prediction, before any code runs. Two ranks of pocket: 256 float32 for each token, cut into two parts. Both
    first write their part, whole, and then read. A pipe takes 65,536 bytes before anybody reads.

    Returns:
        The smallest number of tokens for which the two stand still for ever.
    """
    raise NotImplementedError("the smallest number of tokens for which both stand still")


def reduce_scatter(x: np.ndarray, link: Any, timeout_s: float = 10.0) -> tuple[slice, np.ndarray]:
    """One part of the sum over all ranks' x; each part at exactly one rank.

    Args:
        x: any shape; left as it is. All ranks have the same shape and type.
        link: a `Link` of `given.py`.
        timeout_s: see `all_reduce`.

    Returns:
        (which numbers of the flattened array, their sums over the ranks). Which part a rank gets is yours to decide.
    """
    raise NotImplementedError("which part of the sum this rank has, and its numbers")


def all_gather(part: slice, values: np.ndarray, size: int, link: Any, timeout_s: float = 10.0) -> np.ndarray:
    """Everybody's part, on all ranks, to the bit.

    Args:
        part, values: what this rank has, as `reduce_scatter` gives it; left as they are. Of fewer numbers than
            ranks several have an empty part. size: numbers in all.
        timeout_s: see `all_reduce`.

    Returns:
        [size], in the type of values.
    """
    raise NotImplementedError("everybody's part, on this rank as on all")


def all_reduce(x: np.ndarray, link: Any, timeout_s: float = 10.0) -> np.ndarray:
    """The sum over all ranks' x, with the same bits on each of them. All ranks call it at about the same time.

    A rank sends 2 (N - 1) parts and not one more; alone, it sends nothing. It works for arrays of any size, of fewer
    numbers than ranks, and of none.

    Args:
        x: any shape; left as it is. link: a `Link` of `given.py`.
        timeout_s: for how long nothing may come and nothing go; each byte that does starts the clock anew.

    Returns:
        A new array of x's shape and type.

    Raises:
        TimeoutError: "rank 1: no progress with ranks 0 and 2 for 0.3 s": the one it reads from, the one it writes to.
        ConnectionError: "rank 1: rank 0 is gone", for the neighbour whose end of a pipe is closed.
    """
    raise NotImplementedError("the sum over all ranks, with the same bits on each")
