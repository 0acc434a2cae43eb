"""A tiled matrix product: each program computes one tile of C and walks along K.

Per step a program reads BLOCK_M + BLOCK_N rows of BLOCK_K numbers and does BLOCK_M * BLOCK_N * BLOCK_K multiply-adds:
the larger the tile, the more often each loaded number is used. Programs that run at the same time are near each other
in C (`tile_of`), so that what one has loaded, its neighbours find in the L2 cache.

Two ways to the same result. `gemm` computes an address for every element: any strides, any sizes. `gemm_tma` describes
each matrix once and lets Hopper's copy engine (TMA) fetch whole tiles: no address arithmetic in the loop.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def tile_of(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Which tile of C program `pid` computes: GROUP_M tiles down, then one to the right, and so on."""
    per_band = GROUP_M * num_n
    first_m = pid // per_band * GROUP_M
    height = tl.minimum(num_m - first_m, GROUP_M)
    return first_m + pid % per_band % height, pid % per_band // height


@triton.jit
def _gemm_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One program: one tile of C. Rows and columns beyond the edge wrap around: they are computed, but not stored."""
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    ks = tl.arange(0, BLOCK_K)
    a_at = a_ptr + (rows % M)[:, None] * stride_am + ks[None, :] * stride_ak
    b_at = b_ptr + ks[:, None] * stride_bk + (cols % N)[None, :] * stride_bn
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_at, mask=ks[None, :] < K - k, other=0.0)
        b = tl.load(b_at, mask=ks[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    c_at = c_ptr + rows[:, None] * N + cols[None, :]
    tl.store(c_at, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def _gemm_tma_kernel(a_desc, b_desc, c_desc, M, N, K, GROUP_M: tl.constexpr):
    """One program: one tile of C. A descriptor knows the shape: beyond the edge it reads zeros and stores nothing."""
    BLOCK_M: tl.constexpr = c_desc.block_shape[0]
    BLOCK_N: tl.constexpr = c_desc.block_shape[1]
    BLOCK_K: tl.constexpr = a_desc.block_shape[1]
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([tile_m * BLOCK_M, k])
        b = b_desc.load([k, tile_n * BLOCK_N])
        acc = tl.dot(a, b, acc, input_precision="ieee")
    c_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N], acc.to(c_desc.dtype))


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    block: tuple[int, int, int] = (128, 256, 64),
    group_m: int = 8,
    num_warps: int = 8,
    num_stages: int = 3,
) -> torch.Tensor:
    """C = A @ B, summed in float32.

    Args:
        a, b: [M, K] and [K, N] of one float type, any strides; so `gemm(x, weight.T)` is a linear layer.
        block: BLOCK_M, BLOCK_N, BLOCK_K: powers of two, at least 16.
        group_m: height in tiles of a band of programs (`tile_of`).

    Returns:
        [M, N], in a's dtype.

    Raises:
        ValueError: "a is [M, K] and b is [L, N]: K and L differ".
    """
    M, N, K = _sizes(a, b)
    c = a.new_empty(M, N)
    grid = (triton.cdiv(M, block[0]) * triton.cdiv(N, block[1]),)
    _gemm_kernel[grid](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
        BLOCK_M=block[0], BLOCK_N=block[1], BLOCK_K=block[2], GROUP_M=group_m,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return c


def gemm_tma(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    block: tuple[int, int, int] = (128, 256, 64),
    group_m: int = 8,
    num_warps: int = 8,
    num_stages: int = 3,
) -> torch.Tensor:
    """`gemm` through the copy engine: a and b contiguous, rows of a multiple of 16 bytes; Hopper or later.

    Raises:
        ValueError: as `gemm`; "rows of R bytes: the copy engine wants a multiple of 16".
    """
    M, N, K = _sizes(a, b)
    for width in (K, N):
        if width * a.element_size() % 16:
            raise ValueError(f"rows of {width * a.element_size()} bytes: the copy engine wants a multiple of 16")
    c = a.new_empty(M, N)
    a_desc = TensorDescriptor.from_tensor(a, [block[0], block[2]])
    b_desc = TensorDescriptor.from_tensor(b, [block[2], block[1]])
    c_desc = TensorDescriptor.from_tensor(c, [block[0], block[1]])
    grid = (triton.cdiv(M, block[0]) * triton.cdiv(N, block[1]),)
    _gemm_tma_kernel[grid](a_desc, b_desc, c_desc, M, N, K, GROUP_M=group_m, num_warps=num_warps, num_stages=num_stages)
    return c


def _sizes(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int, int]:
    """M, N and K of a @ b."""
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {list(a.shape)} and b is {list(b.shape)}: {a.shape[1]} and {b.shape[0]} differ")
    return a.shape[0], b.shape[1], a.shape[1]
