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
    raise NotImplementedError("your prediction: four numbers of reads")


@triton.jit
def _shrink_kernel(
    x_ptr, a_ptr, scale_ptr, s_ptr, order_ptr, start_ptr, x_stride, num_in,
    R: tl.constexpr, R_PAD: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: at most TILE tokens of one slot. The parameters are a proposal: only your launcher calls this."""
    raise NotImplementedError("the kernel: what A makes of the tokens of one program")


@triton.jit
def _expand_kernel(
    s_ptr, b_ptr, y_ptr, order_ptr, start_ptr, y_stride, num_out,
    R: tl.constexpr, R_PAD: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: at most TILE tokens of one slot. The parameters are a proposal: only your launcher calls this."""
    raise NotImplementedError("the kernel: what B adds to the tokens of one program")


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
    raise NotImplementedError("the rank-r middle of every token, by one launch")


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
    raise NotImplementedError("y, in which every token has gained what its adapter adds")
