"""Residual addition and RMS norm in one pass over the row.

Upstream: upstream/csrc/libtorch_stable/layernorm_kernels.cu:94 — `fused_add_rms_norm_kernel`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, eps, SIZE: tl.constexpr, PADDED: tl.constexpr, ADD: tl.constexpr
):
    """One program: one row. `residual` becomes the sum (or x, at the first norm), `out` its norm times `weight`."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    inside = at < SIZE
    x = tl.load(x_ptr + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_ptr + row * SIZE + at, x.to(residual_ptr.dtype.element_ty), mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of x + residual, x + residual). x: [T, H], contiguous; residual: [T, H], overwritten; None: zeros."""
    out = torch.empty_like(x)
    kept = torch.empty_like(x) if residual is None else residual
    size = x.shape[-1]
    _add_rms_norm_kernel[(len(x),)](
        x, kept, weight, out, eps, SIZE=size, PADDED=triton.next_power_of_2(size), ADD=residual is not None,
        num_warps=4 if size <= 2048 else 8,
    )  # fmt: skip
    return out, kept


@triton.jit
def _silu_and_mul_kernel(x_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program: BLOCK columns of one row of `gate beside up`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    gate = tl.load(x_ptr + row * 2 * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * SIZE + SIZE + at, mask=inside, other=0.0).to(tl.float32)
    silu = gate / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + row * SIZE + at, (silu * up).to(out_ptr.dtype.element_ty), mask=inside)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """[T, 2 * n], gate beside up, contiguous -> silu(gate) * up, [T, n].

    Upstream: upstream/csrc/libtorch_stable/activation_kernels.cu:78 — `act_and_mul_kernel`.
    """
    size = x.shape[-1] // 2
    out = x.new_empty(len(x), size)
    _silu_and_mul_kernel[(len(x), triton.cdiv(size, 1024))](x, out, SIZE=size, BLOCK=1024, num_warps=4)
    return out
