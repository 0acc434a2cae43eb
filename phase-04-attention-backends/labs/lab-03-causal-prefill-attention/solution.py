"""Lab 04-03: attention for many queries at once, each with a prefix of its own: the prefill shape, and its tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def dense_causal_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, start_pos: int = 0, window: int | None = None
) -> np.ndarray:
    """The judge: all scores at once. The query of position p sees the keys of positions 0 .. p, its own included.

    Args:
        q: [m, d], the queries of positions start_pos .. start_pos + m - 1.
        k: [n, d], keys of positions 0 .. n - 1, with n at least start_pos + m.
        v: [n, dv].
        window: each query sees the last `window` keys up to its own, 1 or more; None: all of them.

    Returns:
        [m, dv]: for each query the average of the values that it sees, weighed by the softmax of q·k / sqrt(d).
        Computed in float64 whatever comes in; scores of any size are allowed.

    Raises:
        ValueError: "window must be at least 1, got 0": such a query would see nothing.
    """
    _check(window)
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    query, key = start_pos + np.arange(len(q))[:, None], np.arange(len(k))[None, :]
    visible = key <= query
    if window:
        visible &= key > query - window
    scores = np.where(visible, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def _check(window: int | None) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")


def paged_causal_prefill_attention(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, block_table: Sequence[int], start_pos: int
) -> np.ndarray:
    """The same from a paged cache, one query after the other, without a window.

    The chunk's own keys and values are in the cache already. A block is read as `k_cache[block]`, `v_cache[block]`: for
    each query those of its own prefix, each once. Never is a number held for every key: memory does not grow with the
    context. No argument is changed.

    Args:
        q: [m, d], positions start_pos .. start_pos + m - 1.
        k_cache: [num_blocks, block_size, d].
        v_cache: [num_blocks, block_size, dv].
        block_table: physical block of each logical block of this request.
        start_pos: tokens of the request that were computed in earlier steps.

    Returns:
        [m, dv], computed in float64. Slots beyond the last query's position may hold anything, NaN included.
    """
    block_size = k_cache.shape[1]
    out = np.empty((len(q), v_cache.shape[2]))
    for row, query in enumerate(np.asarray(q, np.float64)):
        seq_len = start_pos + row + 1
        m, denom, acc = -np.inf, 0.0, np.zeros(out.shape[1])
        for tile in range(-(-seq_len // block_size)):
            valid, block = min(block_size, seq_len - tile * block_size), block_table[tile]
            scores = k_cache[block][:valid] @ query / np.sqrt(len(query))
            m_new = max(m, scores.max())
            correction, p = np.exp(m - m_new), np.exp(scores - m_new)
            m, denom = m_new, denom * correction + p.sum()
            acc = acc * correction + p @ v_cache[block][:valid]
        out[row] = acc / denom
    return out


def tile_bounds(first_pos: int, last_pos: int, tile_size: int, window: int | None = None) -> tuple[int, int]:
    """Which tiles of keys a group of queries has to look at.

    Args:
        first_pos: position of the first query of the group.
        last_pos: position of its last query.
        tile_size: keys per tile; tile i holds positions i * tile_size .. (i + 1) * tile_size - 1.
        window: each query sees the last `window` keys up to its own, 1 or more; None: all of them.

    Returns:
        (first tile, one past the last tile). Above the last query nothing is seen by anybody; below the window of the
        first query neither.

    Raises:
        ValueError: as in `dense_causal_attention`.

    Upstream: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:142 — `compute_tile_loop_bounds`.
    """
    _check(window)
    first_key = max(0, first_pos - window + 1) if window else 0
    return first_key // tile_size, last_pos // tile_size + 1


def tiled_causal_prefill_attention(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, block_table: Sequence[int], start_pos: int,
    query_tile: int = 4, window: int | None = None,
) -> np.ndarray:  # fmt: skip
    """The shape of a real kernel: queries in groups of `query_tile`, and a block that is read serves its whole group.

    Arguments, result and memory as for `paged_causal_prefill_attention`. For each group exactly the blocks between its
    `tile_bounds` are read, each once; a row of the group may see nothing of a block, of its first one too.

    Args:
        query_tile: queries per group, counted from the chunk's first; the last group may have fewer.
        window: as for `tile_bounds`, its error too.
    """
    block_size, dv = k_cache.shape[1], v_cache.shape[2]
    out = np.empty((len(q), dv))
    for first in range(0, len(q), query_tile):
        queries = np.asarray(q[first : first + query_tile], np.float64)
        pos = start_pos + first + np.arange(len(queries))[:, None]
        m, denom, acc = np.full((len(queries), 1), -np.inf), np.zeros((len(queries), 1)), np.zeros((len(queries), dv))
        for tile in range(*tile_bounds(int(pos[0, 0]), int(pos[-1, 0]), block_size, window)):
            valid = min(block_size, int(pos[-1, 0]) + 1 - tile * block_size)
            keys, values = k_cache[block_table[tile]][:valid], v_cache[block_table[tile]][:valid]
            key = tile * block_size + np.arange(valid)[None, :]
            visible = key <= pos
            if window:
                visible &= key > pos - window
            scores = np.where(visible, queries @ keys.T / np.sqrt(queries.shape[1]), -np.inf)
            m_new = np.maximum(m, scores.max(axis=1, keepdims=True))
            safe = np.where(m_new > -np.inf, m_new, 0.0)  # a row that has seen nothing yet: -inf - -inf is NaN
            correction, p = np.exp(m - safe), np.exp(scores - safe)
            m, denom = m_new, denom * correction + p.sum(axis=1, keepdims=True)
            acc = acc * correction + p @ values
        out[first : first + query_tile] = acc / denom
    return out
