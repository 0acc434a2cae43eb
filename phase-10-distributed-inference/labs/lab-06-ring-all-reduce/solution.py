"""Lab 10-06: N processes agree on a sum, while each of them sees two neighbours.

Each hop adds in the type of the arrays. Parts are those of `np.array_split` of the flattened array: N of them, the
first ones a number longer where it does not divide.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np


def predicted_tokens() -> int:
    """Your prediction, before any code runs. Two ranks of pocket: 256 float32 for each token, cut into two parts. Both
    first write their part, whole, and then read. A pipe takes 65,536 bytes before anybody reads.

    Returns:
        The smallest number of tokens for which the two stand still for ever.
    """
    return 129


def reduce_scatter(x: np.ndarray, link: Any, timeout_s: float = 10.0) -> tuple[slice, np.ndarray]:
    """One part of the sum over all ranks' x; each part at exactly one rank.

    Args:
        x: any shape; left as it is. All ranks have the same shape and type.
        link: a `Link` of `given.py`.
        timeout_s: see `all_reduce`.

    Returns:
        (which numbers of the flattened array, their sums over the ranks). Which part a rank gets is yours to decide.
    """
    total, bounds = x.flatten(), _bounds(x.size, link.size)
    for hop in range(link.size - 1):
        out, into = bounds[(link.rank - hop) % link.size], bounds[(link.rank - hop - 1) % link.size]
        total[into] += _exchange(link, total[out], into.stop - into.start, timeout_s)
    mine = bounds[(link.rank + 1) % link.size]
    return mine, total[mine].copy()


def all_gather(part: slice, values: np.ndarray, size: int, link: Any, timeout_s: float = 10.0) -> np.ndarray:
    """Everybody's part, on all ranks, to the bit.

    Args:
        part, values: what this rank has, as `reduce_scatter` gives it; left as they are. Of fewer numbers than
            ranks several have an empty part. size: numbers in all.
        timeout_s: see `all_reduce`.

    Returns:
        [size], in the type of values.
    """
    whole, bounds = np.empty(size, values.dtype), _bounds(size, link.size)
    whole[part] = values
    for hop in range(link.size - 1):
        out, into = bounds[(link.rank + 1 - hop) % link.size], bounds[(link.rank - hop) % link.size]
        whole[into] = _exchange(link, whole[out], into.stop - into.start, timeout_s)
    return whole


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
    part, values = reduce_scatter(x, link, timeout_s)
    return all_gather(part, values, x.size, link, timeout_s).reshape(x.shape)


def _bounds(size: int, ranks: int) -> list[slice]:
    starts = [size // ranks * each + min(each, size % ranks) for each in range(ranks + 1)]
    return [slice(starts[each], starts[each + 1]) for each in range(ranks)]


def _exchange(link: Any, part: np.ndarray, count: int, timeout_s: float) -> np.ndarray:
    """Sends a part and receives `count` numbers, whichever end is ready first."""
    before, after = (link.rank - 1) % link.size, (link.rank + 1) % link.size
    out, into, want = part.tobytes(), bytearray(), count * part.itemsize
    sent, deadline = 0, time.monotonic() + timeout_s
    while sent < len(out) or len(into) < want:
        readable, writable = link.ready(deadline - time.monotonic(), len(into) < want, sent < len(out))
        if not readable and not writable:
            raise TimeoutError(f"rank {link.rank}: no progress with ranks {before} and {after} for {timeout_s} s")
        deadline = time.monotonic() + timeout_s
        if readable:
            data = link.read(want - len(into), wait=False)
            if not data:
                raise ConnectionError(f"rank {link.rank}: rank {before} is gone")
            into += data
        if writable:
            try:
                sent += link.write(out[sent:], wait=False)
            except BrokenPipeError:
                raise ConnectionError(f"rank {link.rank}: rank {after} is gone") from None
    return link.numbers(bytes(into), part.dtype)
