"""Lab 10-01: one matrix on several ranks, two matrices with one sum, and a rank's own life.

Weights are stored as on disk, [outputs, inputs]: y = x @ W.T. All shares are equal and lie next to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def predicted_difference() -> float:
    """Your prediction, before any code runs. A product of 64 inputs, in float16, cut over 4 ranks along the inputs:
    parts are rounded to float16 before they are added, and so is each sum.

    Returns:
        Share of the outputs, 0 to 1, that are not the bits of the same product on one device.
    """
    return 0.5


def column_parallel(x: np.ndarray, W: np.ndarray, num_ranks: int) -> np.ndarray:
    """x @ W.T, computed by ranks of which each holds `out / num_ranks` whole rows of W and sees all of x.

    Args:
        x: [T, in]. W: [out, in]. num_ranks: at least 1.

    Returns:
        [T, out], to the bit what the ranks have computed, put together; no rank computes what another one does.

    Raises:
        ValueError: "out = 6 does not divide by 4 ranks".
    """
    _check(len(W), "out", num_ranks)
    return np.concatenate([x @ rows.T for rows in np.split(W, num_ranks)], axis=-1)


def row_parallel(x: np.ndarray, W: np.ndarray, num_ranks: int, bias: np.ndarray | None = None) -> np.ndarray:
    """x @ W.T + bias, computed by ranks of which each sees `in / num_ranks` numbers of each x, and holds the part of W
    that reads them.

    Args:
        x: [T, in]. W: [out, in]. num_ranks: at least 1. bias: [out].

    Returns:
        [T, out]: the sum of the ranks' parts, in the order of the ranks, in x's type; the bias is in it once.

    Raises:
        ValueError: "in = 6 does not divide by 4 ranks".
    """
    _check(W.shape[1], "in", num_ranks)
    parts = zip(np.split(x, num_ranks, axis=-1), np.split(W, num_ranks, axis=1), strict=True)
    total: Any = 0
    for mine, part in parts:
        total = total + mine @ part.T
    return total if bias is None else total + bias


def mlp_tp(x: np.ndarray, W1: np.ndarray, W2: np.ndarray, num_ranks: int) -> tuple[np.ndarray, int]:
    """relu(x @ W1.T) @ W2.T, computed by ranks that meet as rarely as they can.

    Args:
        x: [T, in]. W1: [hidden, in]. W2: [out, hidden].

    Returns:
        ([T, out], how many all-reduces it took). Nothing else crosses between the ranks.

    Raises:
        ValueError: "hidden = 6 does not divide by 4 ranks".
    """
    _check(len(W1), "hidden", num_ranks)
    shares = zip(np.split(W1, num_ranks), np.split(W2, num_ranks, axis=1), strict=True)
    return sum(np.maximum(x @ rows.T, 0) @ columns.T for rows, columns in shares), 1


def gated_mlp_rank(x: np.ndarray, rank: Any) -> np.ndarray:
    """What one rank does for the MLP of a Llama, silu(gate) * up and then down: it runs on every rank at once.

    `rank.checkpoint` has "gate_up", [2 * hidden, in], the rows of gate before those of up, and "down", [out, hidden].
    The rank takes a `size`-th part of each, no more, and meets the others once.

    Args:
        x: [T, in], the same on every rank. rank: a `Rank` of `given.py`.

    Returns:
        [T, out], the same on every rank: what `given.dense_gated_mlp` gives, but for the order of the sum.

    Raises:
        ValueError: "hidden = 6 does not divide by 4 ranks", before anything is taken.
    """
    hidden = rank.checkpoint.shapes["down"][1]
    _check(hidden, "hidden", rank.size)
    mine = _share(hidden, rank.rank, rank.size)
    gate = x @ rank.checkpoint.take("gate_up", mine).T
    up = x @ rank.checkpoint.take("gate_up", slice(hidden + mine.start, hidden + mine.stop)).T
    return rank.all_reduce(gate / (1 + np.exp(-gate)) * up @ rank.checkpoint.take("down", columns=mine).T)


def attention_rank(x: np.ndarray, rank: Any, num_heads: int, num_kv_heads: int, attend: Any) -> np.ndarray:
    """What one rank does for attention: it runs on every rank at once.

    `rank.checkpoint` has "qkv", [(num_heads + 2 * num_kv_heads) * D, in], the rows of all q heads, then of all k heads,
    then of all v heads, and "o", [out, num_heads * D]. Head h reads KV head h * num_kv_heads // num_heads. A rank takes
    the rows of its own heads and of the KV heads that these read, its share of "o", no more, and meets the others once.

    Args:
        x: [T, in], one prompt, the same on every rank. rank: a `Rank` of `given.py`.
        attend: (q [T, heads, D], k [T, kv, D], v [T, kv, D]) -> [T, heads, D], as `given.causal_attention`.

    Returns:
        [T, out], the same on every rank: what `given.dense_attention` gives, but for the order of the sum.

    Raises:
        ValueError: "num_heads = 6 does not divide by 4 ranks", before anything is taken. Also "num_kv_heads = 3 and
            2 ranks: neither divides the other".
    """
    _check(num_heads, "num_heads", rank.size)
    if num_kv_heads % rank.size and rank.size % num_kv_heads:
        raise ValueError(f"num_kv_heads = {num_kv_heads} and {rank.size} ranks: neither divides the other")
    size = rank.checkpoint.shapes["o"][1] // num_heads
    mine = _share(num_heads, rank.rank, rank.size)
    first, last = mine.start * num_kv_heads // num_heads, (mine.stop - 1) * num_kv_heads // num_heads
    spans = [(mine.start, mine.stop)]
    spans += [(start + first, start + last + 1) for start in (num_heads, num_heads + num_kv_heads)]
    q, k, v = (
        (x @ rank.checkpoint.take("qkv", slice(a * size, b * size)).T).reshape(len(x), b - a, size) for a, b in spans
    )
    columns = slice(mine.start * size, mine.stop * size)
    return rank.all_reduce(attend(q, k, v).reshape(len(x), -1) @ rank.checkpoint.take("o", columns=columns).T)


def _check(size: int, name: str, ranks: int) -> None:
    if size % ranks:
        raise ValueError(f"{name} = {size} does not divide by {ranks} ranks")


def _share(size: int, rank: int, ranks: int) -> slice:
    return slice(rank * size // ranks, (rank + 1) * size // ranks)
