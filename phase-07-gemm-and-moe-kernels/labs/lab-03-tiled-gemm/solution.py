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
    (M, K), (K2, N) = A.shape, B.shape
    if K != K2:
        raise ValueError(f"inner dimensions differ: A is {A.shape}, B is {B.shape}")
    dtype = np.result_type(A, B)
    out = np.empty((M, N), dtype)
    for m in range(0, M, tile_m):
        for n in range(0, N, tile_n):
            rows, cols = slice(m, m + tile_m), slice(n, n + tile_n)
            total = np.zeros(out[rows, cols].shape, np.result_type(dtype, np.float32))
            for k in range(0, K, tile_k):
                inner = slice(k, k + tile_k)
                total += A[rows, inner].astype(total.dtype) @ B[inner, cols].astype(total.dtype)
            out[rows, cols] = total
    return out


def naive_traffic(M: int, N: int, K: int) -> int:
    """Numbers fetched by three plain loops, which keep nothing but one sum. An int."""
    return M * N * 2 * K


def tiled_traffic(M: int, N: int, K: int, tile_m: int, tile_n: int) -> int:
    """Numbers that `tiled_gemm` slices out of A and B, whatever its tile_k; exact, ragged edges included. An int."""
    return M * K * -(-N // tile_n) + K * N * -(-M // tile_m)


def reuse_factor(tile_m: int, tile_n: int) -> float:
    """Naive traffic over tiled traffic, for sizes that the tiles divide. The sizes themselves drop out."""
    return 2 / (1 / tile_m + 1 / tile_n)


def fast_memory_bytes(tile_m: int, tile_n: int, tile_k: int, dtype_bytes: int) -> int:
    """Fast memory that one tile of the result needs: a tile of A, one of B, and float32 sums."""
    return (tile_m * tile_k + tile_k * tile_n) * dtype_bytes + tile_m * tile_n * 4
