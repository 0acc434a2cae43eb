"""Fused softmax over the last axis: one read and one write of the tensor.

Written with separate operations (maximum, subtract, exp, sum, divide), softmax reads its tensor five times and writes
it three times. It has almost no arithmetic, so its time is the bytes it moves: one read and one write are a quarter of
them. A row that fits a program's registers is read once. A longer one is read twice, first for maximum and sum (online:
one pass finds both), then to write.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4e38)  # not -inf: -inf - -inf would be NaN
LONGEST_HELD = 32_768  # elements of a row that one program keeps in registers


@triton.jit
def _held_rows_kernel(
    out_ptr, x_ptr, num_rows, num_cols, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """One program: ROWS whole rows at a time, held in registers between the read and the write; COLS >= num_cols.

    With fewer programs than rows a program takes one block of rows after the other, and asks for the next one early.
    """
    step = tl.num_programs(0) * ROWS
    for first in tl.range(tl.program_id(0) * ROWS, num_rows, step, num_stages=STAGES):
        rows, cols = first + tl.arange(0, ROWS), tl.arange(0, COLS)
        at = rows[:, None].to(tl.int64) * num_cols + cols[None, :]
        inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
        x = tl.load(x_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)
        weights = tl.exp(x - tl.max(x, axis=1)[:, None])
        tl.store(out_ptr + at, weights / tl.sum(weights, axis=1)[:, None], mask=inside)


@triton.jit
def _long_row_kernel(out_ptr, x_ptr, num_cols, COLS: tl.constexpr):
    """One program: one row in pieces of COLS. Each lane keeps its own maximum and sum; they are merged at the end.

    The cache is asked to keep what the first pass read, and to drop what the second has read.
    """
    NONE: tl.constexpr = float("-inf")
    row = tl.program_id(0).to(tl.int64) * num_cols
    lanes = tl.arange(0, COLS)
    m = tl.full([COLS], LOWEST, tl.float32)
    total = tl.zeros([COLS], tl.float32)
    for start in range(0, num_cols, COLS):
        cols = start + lanes
        x = tl.load(x_ptr + row + cols, mask=cols < num_cols, other=NONE, eviction_policy="evict_last")
        x = x.to(tl.float32)
        less = tl.exp(-tl.abs(x - m))  # the one factor that is not 1: of the sum so far, or of the new term
        total = tl.where(x > m, total * less + 1.0, total + less)
        m = tl.maximum(m, x)
    highest = tl.max(m, axis=0)
    denominator = tl.sum(total * tl.exp(m - highest), axis=0)
    for start in range(0, num_cols, COLS):
        cols = start + lanes
        x = tl.load(x_ptr + row + cols, mask=cols < num_cols, other=NONE, eviction_policy="evict_first")
        x = x.to(tl.float32)
        tl.store(out_ptr + row + cols, tl.exp(x - highest) / denominator, mask=cols < num_cols)


def softmax(x: torch.Tensor, **launch: int) -> torch.Tensor:
    """Softmax over the last axis, computed in float32.

    Args:
        x: [..., num_cols], contiguous, any float type. A row may hold -inf, but not only -inf.
        launch: instead of what `choose_launch` says: rows per program, programs, num_stages, num_warps; or `piece`, and
            each row is read twice, in pieces of that many columns.

    Returns:
        x's shape and dtype.

    Raises:
        ValueError: "x must be contiguous", "x has no columns".
    """
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    num_cols = x.shape[-1]
    if num_cols == 0:
        raise ValueError("x has no columns")
    out = torch.empty_like(x)
    num_rows = x.numel() // num_cols
    chosen = choose_launch(x) | launch
    if "piece" in chosen:
        _long_row_kernel[(num_rows,)](out, x, num_cols, COLS=chosen["piece"], num_warps=chosen["num_warps"])
        return out
    padded = triton.next_power_of_2(num_cols)
    grid = (min(triton.cdiv(num_rows, chosen["rows"]), chosen["programs"]),)
    _held_rows_kernel[grid](
        out, x, num_rows, num_cols, ROWS=chosen["rows"], COLS=padded, STAGES=chosen["num_stages"],
        num_warps=chosen["num_warps"],
    )  # fmt: skip
    return out


def choose_launch(x: torch.Tensor) -> dict[str, int]:
    """What was fastest on an H200, by the length of a row: short rows share a program, long ones get a pipeline."""
    padded = triton.next_power_of_2(x.shape[-1])
    if padded > LONGEST_HELD:
        return {"piece": 8192, "num_warps": 32}
    if padded * x.element_size() == 65536 and x.is_cuda:  # three rows fit the shared memory: read ahead
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        return {"rows": 1, "programs": sms, "num_stages": 3, "num_warps": 16}
    rows = max(1, 2048 // padded)
    warps = min(32, max(2, rows * padded // 1024))
    return {"rows": rows, "programs": x.numel(), "num_stages": 1, "num_warps": warps}
