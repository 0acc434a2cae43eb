"""Lab 04-06: FlashAttention for one head, in Triton. Dense K and V, a causal prompt, one walk over the keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def predicted_corrections() -> float:
    """Your guess, before any kernel of yours has run: how often a row's running maximum rises over 32 tiles of keys.

    Queries and keys are random; the first tile counts as a rise. Between 1.0 and 32.0, and good to a factor of 1.5.
    """
    return sum(1 / n for n in range(1, 33))


def tiles_visited(M: int, N: int, block_m: int, block_n: int) -> int:
    """Tiles of keys that all programs together look at, before any kernel runs.

    A program has block_m queries (the last one perhaps fewer), a tile block_n keys. Query i of M stands at position
    N - M + i. A tile counts where at least one query of the program may see at least one of its keys.
    """
    ends = (N - M + min(first + block_m, M) for first in range(0, M, block_m))
    return sum(-(-end // block_n) for end in ends)


@triton.jit
def _flash_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, corrections_ptr, scale, M, N, q_stride, k_stride, v_stride,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program: the queries BLOCK_M * program_id and following. Yours alone: the tests do not call it."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    real = rows < M
    q = tl.load(q_ptr + rows[:, None] * q_stride + dims[None, :], mask=real[:, None], other=0.0)
    position = N - M + rows
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    corrections = tl.zeros([BLOCK_M], tl.int32)
    end = tl.minimum(N, N - M + (tl.program_id(0) + 1) * BLOCK_M)
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys[:, None] < end
        k = tl.load(k_ptr + keys[:, None] * k_stride + dims[None, :], mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(keys[None, :] <= position[:, None], scores, float("-inf"))
        new_m = tl.maximum(m, tl.max(scores, axis=1))
        corrections += (new_m > m).to(tl.int32)
        shrink, weights = tl.exp(m - new_m), tl.exp(scores - new_m[:, None])
        v = tl.load(v_ptr + keys[:, None] * v_stride + dims[None, :], mask=inside, other=0.0)
        l = l * shrink + tl.sum(weights, axis=1)  # noqa: E741
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        m = new_m
    out = (acc / l[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows[:, None] * HEAD_DIM + dims[None, :], out, mask=real[:, None])
    tl.store(corrections_ptr + rows, corrections, mask=real)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 2:
            raise ValueError(f"{name} must have two dimensions, got shape {tuple(x.shape)}")
        if x.stride(1) != 1:
            raise ValueError(f"{name}: the numbers of a row must be neighbours, got stride {x.stride(1)}")
    if k.shape != v.shape or q.shape[1] != k.shape[1]:
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not belong together")
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        raise ValueError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if len(q) > len(k):
        raise ValueError(f"{len(q)} queries cannot be the last of {len(k)} keys")
    for name, n in (("head_dim", q.shape[1]), ("block_m", block_m), ("block_n", block_n)):
        if n < 16 or n & (n - 1):
            raise ValueError(f"{name} {n} is not a power of two from 16 on")


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_m: int = 32, block_n: int = 32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of one head, and how often each row's maximum rose.

    Query i stands at position N - M + i and sees the keys 0 .. N - M + i. Scores are scaled by 1 / sqrt(d). Scores,
    maximum, sum and accumulator are float32; the products of tiles are `tl.dot`. One program has block_m queries and
    looks at block_n keys at a time. A key after the position of a program's last query is never read by it, a number
    of K or V at most once. The arguments are not changed, and K and V are not copied.

    Args:
        q: [M, d]; k, v: [N, d], M <= N, in one dtype (float16 or float32). Rows may stand any distance apart, as in
            one head cut out of [T, H, d]; the numbers of a row are neighbours. d is a power of two from 16 on.
        block_m, block_n: powers of two from 16 on.

    Returns:
        out [M, d] in q's dtype, contiguous; corrections [M] int32: the tiles of keys that raised the row's maximum,
        its first one included. M = 0 gives empty results.

    Raises:
        ValueError: "q must have two dimensions, got shape (16,)" (k and v alike); "q: the numbers of a row must be
            neighbours, got stride 8" (alike); "q [4, 16], k [8, 32] and v [8, 32] do not belong together"; "q, k and v
            must have one dtype, got torch.float16, torch.float32 and torch.float32"; "9 queries cannot be the last of
            8 keys"; "head_dim 12 is not a power of two from 16 on" (block_m and block_n alike).
    """
    _check(q, k, v, block_m, block_n)
    M, d = q.shape
    out = torch.empty((M, d), dtype=q.dtype, device=q.device)
    corrections = torch.empty(M, dtype=torch.int32, device=q.device)
    _flash_kernel[(triton.cdiv(M, block_m),)](
        q, k, v, out, corrections, d**-0.5, M, len(k), q.stride(0), k.stride(0), v.stride(0),
        HEAD_DIM=d, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, corrections
