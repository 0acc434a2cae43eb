"""Lab 07-03: a matrix product in tiles, and how many numbers it fetches from slow memory."""

from __future__ import annotations

import numpy as np


def tiled_gemm(A: np.ndarray, B: np.ndarray, tile_m: int, tile_n: int, tile_k: int) -> np.ndarray:
    """A @ B, computed tile by tile.

    A tile of the result, [tile_m, tile_n], is finished before the next one begins. It walks along K in steps of
    tile_k, and each step fetches one tile of A and one of B, by slicing. Tiles at the edges may be smaller.

    Args:
        A: [M, K]; B: [K, N]. With K = 0 the result is zeros.
        tile_m, tile_n, tile_k: at least 1.

    Returns:
        [M, N] in the type of A @ B. Sums are kept in float32 at least, and rounded once, at the end.

    Raises:
        ValueError: "inner dimensions differ".
    """
    raise NotImplementedError("the product, one finished tile of the result after the other")


def naive_traffic(M: int, N: int, K: int) -> int:
    """Numbers fetched by three plain loops, which keep nothing but one sum. An int."""
    raise NotImplementedError("how many numbers three plain loops fetch")


def tiled_traffic(M: int, N: int, K: int, tile_m: int, tile_n: int) -> int:
    """Numbers that `tiled_gemm` slices out of A and B, whatever its tile_k; exact, ragged edges included. An int."""
    raise NotImplementedError("how many numbers your tiled product fetches")


def reuse_factor(tile_m: int, tile_n: int) -> float:
    """Naive traffic over tiled traffic, for sizes that the tiles divide. The sizes themselves drop out."""
    raise NotImplementedError("how many times fewer numbers the tiles fetch")


def fast_memory_bytes(tile_m: int, tile_n: int, tile_k: int, dtype_bytes: int) -> int:
    """Fast memory that one tile of the result needs: a tile of A, one of B, and float32 sums."""
    raise NotImplementedError("the bytes that one tile of the result needs near the arithmetic")
