"""Lab 04-05: softmax in one kernel. First the bytes, on paper; then two kernels in Triton that move no more."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

MAX_FUSED_COLS = 8192
"""Rows up to this length are held on the chip as a whole; longer ones are read in tiles, twice."""
TILE = 4096
"""Numbers per tile of a long row."""
TILE_WARPS = 8
"""Warps of 32 threads per program of the tiled kernel."""


def row_warps(block: int) -> int:
    """Warps per program of the row kernel, so that a thread holds 16 to 32 numbers of a long row. Given."""
    return 4 if block < 2048 else 8 if block < 8192 else 16


def softmax_reference(x: np.ndarray) -> np.ndarray:
    """The judge: softmax of each row, [rows, cols], computed in float64 whatever comes in.

    Args:
        x: [rows, cols], finite or -inf, of any size; not changed.

    Returns:
        In each row exp(x) over the sum of exp(x) of that row; zeros for a row of -inf alone.
    """
    raise NotImplementedError("rows of weights that sum to 1, or of zeros where nothing is to be seen")


def eager_traffic(rows: int, cols: int, itemsize: int) -> int:
    """Bytes that five separate kernels move through memory for one softmax.

    maximum of each row; x minus maximum; exponential; sum of each row; quotient. Each kernel reads its operands once
    and writes its result once: whole matrices of rows * cols numbers, or columns of `rows` numbers.
    """
    raise NotImplementedError("the bytes that the five kernels together read and write")


def fused_traffic(rows: int, cols: int, itemsize: int, passes: int = 1) -> int:
    """Bytes of one kernel that reads the matrix `passes` times and writes it once."""
    raise NotImplementedError("the bytes that one kernel reads and writes")


@triton.jit
def _row_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    """One program per row, the whole row on the chip: each number read once, written once.

    x_stride, out_stride: numbers from a row's beginning to the next one's. BLOCK: a power of 2, at least cols.
    """
    raise NotImplementedError("the softmax of this program's row, from one reading of it")


@triton.jit
def _tiled_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    """One program per row of any length, never more than BLOCK numbers at hand: each read twice, written once."""
    raise NotImplementedError("the softmax of this program's row, from two readings of it, tile by tile")


def softmax_triton(x: torch.Tensor) -> torch.Tensor:
    """Softmax of each row of x [rows, cols] in x's type, contiguous, computed in float32 and rounded once.

    As in `softmax_reference`, -inf has no weight, and a row of -inf alone gives zeros. Nothing but the numbers of x is
    read and nothing but the result is written; x is neither changed nor copied. Rows may stand apart (`x.stride(0)` of
    any size, as in a slice of a wider matrix); the numbers of a row are neighbours. Up to MAX_FUSED_COLS columns the
    row kernel runs, with the next power of 2; beyond, the tiled one. A matrix without rows or without columns gives an
    empty result of its shape.

    Raises:
        ValueError: x has not two dimensions ("x must have two dimensions, got shape (2, 3, 4)"); or x.stride(1) is not
            1 ("the numbers of a row must be neighbours, got stride 2").
    """
    raise NotImplementedError("the softmax of every row, by one launch of the kernel that fits their length")
