"""Lab 11-05: every adapter of a step in two launches.

Shapes: x [T, in] float16 or float32, last stride 1 · A [S, r, in] · B [S, out, r] · slots [T] int64, -1: no adapter.
r is 8, 16 or 32; in and out are anything. S slots, T tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE, BLOCK = 16, 32  # tokens of a program; inputs, or outputs, at a time


def predicted_reads() -> tuple[float, float, float, float]:
    """Your prediction, made before you write anything. 32 tokens, tiles of 16 tokens, rank 16. How many times is one
    adapter's A read by `lora_shrink`, in units of one whole A, when the tokens

    - are all of one adapter;
    - are dealt round among four, so that no two neighbours have the same;
    - have 32 different adapters;
    - have none?

    Returns:
        The four numbers for a good kernel.
    """
    return 2, 4, 32, 0


@triton.jit
def _shrink_kernel(
    x_ptr, a_ptr, scale_ptr, s_ptr, order_ptr, start_ptr, x_stride, num_in,
    R: tl.constexpr, R_PAD: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: at most TILE tokens of one slot. The parameters are a proposal: only your launcher calls this."""
    slot = tl.program_id(1)
    first, last = tl.load(start_ptr + slot), tl.load(start_ptr + slot + 1)
    first += tl.program_id(0) * TILE
    if first >= last:
        return
    place = first + tl.arange(0, TILE)
    mine = place < last
    tokens = tl.load(order_ptr + place, mask=mine, other=0)
    ranks, ins = tl.arange(0, R_PAD), tl.arange(0, BLOCK)
    acc = tl.zeros([TILE, R_PAD], tl.float32)
    for begin in range(0, num_in, BLOCK):
        inside = begin + ins < num_in
        x_at = tokens[:, None] * x_stride + (begin + ins)[None, :]
        x = tl.load(x_ptr + x_at, mask=mine[:, None] & inside[None, :], other=0.0)
        a_at = (slot * R + ranks)[None, :] * num_in + (begin + ins)[:, None]
        a = tl.load(a_ptr + a_at, mask=inside[:, None] & (ranks < R)[None, :], other=0.0)
        acc += tl.dot(x, a, input_precision="ieee")
    acc *= tl.load(scale_ptr + slot)
    s_at = tokens[:, None] * R + ranks[None, :]
    tl.store(s_ptr + s_at, acc, mask=mine[:, None] & (ranks < R)[None, :])


@triton.jit
def _expand_kernel(
    s_ptr, b_ptr, y_ptr, order_ptr, start_ptr, y_stride, num_out,
    R: tl.constexpr, R_PAD: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: at most TILE tokens of one slot. The parameters are a proposal: only your launcher calls this."""
    slot = tl.program_id(1)
    first, last = tl.load(start_ptr + slot), tl.load(start_ptr + slot + 1)
    first += tl.program_id(0) * TILE
    if first >= last:
        return
    place = first + tl.arange(0, TILE)
    mine = place < last
    tokens = tl.load(order_ptr + place, mask=mine, other=0)
    ranks, outs = tl.arange(0, R_PAD), tl.arange(0, BLOCK)
    s_at = tokens[:, None] * R + ranks[None, :]
    s = tl.load(s_ptr + s_at, mask=mine[:, None] & (ranks < R)[None, :], other=0.0)
    for begin in range(0, num_out, BLOCK):
        inside = begin + outs < num_out
        b_at = (slot * num_out + begin + outs)[None, :] * R + ranks[:, None]
        b = tl.load(b_ptr + b_at, mask=inside[None, :] & (ranks < R)[:, None], other=0.0)
        y_at = tokens[:, None] * y_stride + (begin + outs)[None, :]
        mask = mine[:, None] & inside[None, :]
        y = tl.load(y_ptr + y_at, mask=mask, other=0.0).to(tl.float32)
        y += tl.dot(s, b.to(tl.float32), input_precision="ieee")
        tl.store(y_ptr + y_at, y.to(y_ptr.dtype.element_ty), mask=mask)


def lora_shrink(x: torch.Tensor, A: torch.Tensor, slots: torch.Tensor, scalings: torch.Tensor) -> torch.Tensor:
    """Row t is scalings[k] · A[k] · x[t] for k = slots[t], and zeros where that is -1. One launch, whatever the
    adapters; none for no tokens. A slot that no token has is never read.

    Args:
        scalings: [S] float32.

    Returns:
        [T, r], float32.

    Raises:
        ValueError: "A must have 32 inputs, got 30"; "slots must have one entry a token (2), got 1"; "slot 4 is out of
            range: there are 4 slots, and -1 is no adapter".
    """
    if A.shape[2] != x.shape[1]:
        raise ValueError(f"A must have {x.shape[1]} inputs, got {A.shape[2]}")
    _check(slots, len(x), len(A))
    rank = A.shape[1]
    s = torch.zeros(len(x), rank, dtype=torch.float32, device=x.device)
    if len(x):
        grid = (triton.cdiv(len(x), TILE), len(A))
        _shrink_kernel[grid](
            x, A, scalings, s, *_segments(slots, len(A)), x.stride(0), x.shape[1],
            R=rank, R_PAD=max(16, rank), TILE=TILE, BLOCK=BLOCK,
        )  # fmt: skip
    return s


def lora_expand(s: torch.Tensor, B: torch.Tensor, slots: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Row t of y gains B[k] · s[t] for k = slots[t]: summed in float32 and rounded once, to y's type. Rows of -1 keep
    every bit. One launch; none for no tokens.

    Args:
        s: [T, r] float32. y: [T, out], last stride 1; changed in place.

    Returns:
        y itself.

    Raises:
        ValueError: "B must have 24 outputs, got 20"; and as `lora_shrink` about `slots`.
    """
    if B.shape[1] != y.shape[1]:
        raise ValueError(f"B must have {y.shape[1]} outputs, got {B.shape[1]}")
    _check(slots, len(y), len(B))
    rank = B.shape[2]
    if len(y):
        grid = (triton.cdiv(len(y), TILE), len(B))
        _expand_kernel[grid](
            s, B, y, *_segments(slots, len(B)), y.stride(0), y.shape[1],
            R=rank, R_PAD=max(16, rank), TILE=TILE, BLOCK=BLOCK,
        )  # fmt: skip
    return y


def _segments(slots: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens in the order of their slots, and where each slot's part begins: [T] and [S + 1]. Those of -1 are first."""
    order = torch.sort(slots, stable=True).indices
    starts = torch.cumsum(torch.bincount(slots + 1, minlength=num_slots + 1), 0)
    return order, starts


def _check(slots: torch.Tensor, rows: int, num_slots: int) -> None:
    if len(slots) != rows:
        raise ValueError(f"slots must have one entry a token ({rows}), got {len(slots)}")
    wrong = [each for each in slots.tolist() if not -1 <= each < num_slots]
    if wrong:
        raise ValueError(f"slot {wrong[0]} is out of range: there are {num_slots} slots, and -1 is no adapter")
