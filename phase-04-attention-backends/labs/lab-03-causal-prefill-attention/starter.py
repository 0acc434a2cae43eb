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
    raise NotImplementedError("for each query the weighted average of the values that it may see, and of no others")


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
    raise NotImplementedError(
        "what dense_causal_attention gives, with every query reading the blocks of its own prefix once"
    )


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
    raise NotImplementedError("the first tile that some query of the group may look at, and one past the last")


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
    raise NotImplementedError("the same numbers again, with every block read once for a whole group of queries")
