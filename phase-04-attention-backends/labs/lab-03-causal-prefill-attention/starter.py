"""Lab 04-03: attention for many queries at once, each with a prefix of its own: the prefill shape, and its tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def dense_causal_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, start_pos: int = 0, window: int | None = None
) -> np.ndarray:
    """The judge: all scores at once, with a written-out mask.

    Args:
        q: [m, d], the queries of positions start_pos .. start_pos + m - 1.
        k: [n, d], keys of positions 0 .. n - 1, with n at least start_pos + m.
        v: [n, dv].
        window: each query sees the last `window` keys up to its own; None: all of them.

    Returns:
        [m, dv] in float64.
    """
    raise NotImplementedError(
        "write out the mask of which key each query sees, set the other scores to -inf, and take the softmax of "
        "each row"
    )


def paged_causal_prefill_attention(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, block_table: Sequence[int], start_pos: int
) -> np.ndarray:
    """The same from a paged cache, one query after the other: the query of position p attends to 0 .. p inclusive.

    The chunk's own keys and values are in the cache already. Read a block as `k_cache[block]`, `v_cache[block]`.

    Args:
        q: [m, d], positions start_pos .. start_pos + m - 1.
        k_cache: [num_blocks, block_size, d].
        v_cache: [num_blocks, block_size, dv].
        block_table: physical block of each logical block of this request.
        start_pos: tokens of the request that were computed in earlier steps.

    Returns:
        [m, dv] in float64. Slots beyond the last query's position may hold anything, NaN included.
    """
    raise NotImplementedError(
        "give the query of position p the prefix 0 to p, and run the online softmax over its blocks"
    )


def tile_bounds(first_pos: int, last_pos: int, tile_size: int, window: int | None = None) -> tuple[int, int]:
    """Which tiles of keys a group of queries has to look at.

    Args:
        first_pos: position of the first query of the group.
        last_pos: position of its last query.
        tile_size: keys per tile; tile i holds positions i * tile_size .. (i + 1) * tile_size - 1.
        window: each query sees the last `window` keys up to its own; None: all of them.

    Returns:
        (first tile, one past the last tile). Above the last query nothing is seen by anybody; below the window of the
        first query neither.

    Upstream: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:142 — `compute_tile_loop_bounds`.
    """
    raise NotImplementedError(
        "find the tile of the first key that the first query sees, and the tile of the last query"
    )


def tiled_causal_prefill_attention(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, block_table: Sequence[int], start_pos: int,
    query_tile: int = 4, window: int | None = None,
) -> np.ndarray:  # fmt: skip
    """The shape of a real kernel: tiles of queries outside, tiles of keys inside, each block read once per query tile.

    Arguments and result as for `paged_causal_prefill_attention`. A block that `tile_bounds` leaves out is not read. m
    and denom are [rows, 1] and acc [rows, dv] for the rows of a query tile; a row may see nothing of a tile, also of
    its first one.

    Args:
        query_tile: queries per tile; the last tile may have fewer.
        window: as for `tile_bounds`.
    """
    raise NotImplementedError(
        "for each tile of queries walk the tiles of keys once, mask inside the tile, and keep m, denom and acc per row"
    )
