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
    x = np.asarray(x, np.float64)
    m = x.max(axis=1, keepdims=True)
    weights = np.exp(x - np.where(m > -np.inf, m, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def eager_traffic(rows: int, cols: int, itemsize: int) -> int:
    """Bytes that five separate kernels move through memory for one softmax.

    maximum of each row; x minus maximum; exponential; sum of each row; quotient. Each kernel reads its operands once
    and writes its result once: whole matrices of rows * cols numbers, or columns of `rows` numbers.
    """
    matrix, column = rows * cols, rows
    reads = matrix + (matrix + column) + matrix + matrix + (matrix + column)
    writes = column + matrix + matrix + column + matrix
    return (reads + writes) * itemsize


def fused_traffic(rows: int, cols: int, itemsize: int, passes: int = 1) -> int:
    """Bytes of one kernel that reads the matrix `passes` times and writes it once."""
    return (passes + 1) * rows * cols * itemsize


@triton.jit
def _row_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    """One program per row, the whole row on the chip: each number read once, written once.

    x_stride, out_stride: numbers from a row's beginning to the next one's. BLOCK: a power of 2, at least cols.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    x = tl.load(x_ptr + row * x_stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    m = tl.max(x, axis=0)
    weights = tl.exp(x - tl.where(m > float("-inf"), m, 0.0))
    total = tl.sum(weights, axis=0)
    out = weights / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + row * out_stride + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _tiled_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    """One program per row of any length, never more than BLOCK numbers at hand: each read twice, written once."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    m, total = float("-inf"), 0.0
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + row * x_stride + start + at, mask=start + at < cols, other=float("-inf")).to(tl.float32)
        new_m = tl.maximum(m, tl.max(x, axis=0))
        safe = tl.where(new_m > float("-inf"), new_m, 0.0)
        total = total * tl.exp(m - safe) + tl.sum(tl.exp(x - safe), axis=0)
        m = new_m
    safe = tl.where(m > float("-inf"), m, 0.0)
    total = tl.where(total > 0, total, 1.0)
    for start in range(0, cols, BLOCK):
        inside = start + at < cols
        x = tl.load(x_ptr + row * x_stride + start + at, mask=inside, other=float("-inf")).to(tl.float32)
        out = tl.exp(x - safe) / total
        tl.store(out_ptr + row * out_stride + start + at, out.to(out_ptr.dtype.element_ty), mask=inside)


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
    if x.ndim != 2:
        raise ValueError(f"x must have two dimensions, got shape {tuple(x.shape)}")
    if x.stride(1) != 1:
        raise ValueError(f"the numbers of a row must be neighbours, got stride {x.stride(1)}")
    rows, cols = x.shape
    out = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if out.numel() and cols <= MAX_FUSED_COLS:
        block = triton.next_power_of_2(cols)
        _row_kernel[(rows,)](x, out, x.stride(0), out.stride(0), cols, BLOCK=block, num_warps=row_warps(block))
    elif rows:
        _tiled_kernel[(rows,)](x, out, x.stride(0), out.stride(0), cols, BLOCK=TILE, num_warps=TILE_WARPS)
    return out
