"""Grouped matrix product for a mixture of experts: every expert's rows times its own weights, in one launch.

`moe_align_block_size` has sorted the (token, choice) pairs by expert and padded each expert's share to whole blocks. So
a block of rows belongs to one expert, and a program needs only two look-ups: which pairs are mine, whose weights do I
take. The rows of A are gathered by index, never copied into order.

Upstream: upstream/vllm/model_executor/layers/fused_moe/fused_moe.py:295 — `fused_moe_kernel`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mini_vllm.kernels.gemm import tile_of


@triton.jit
def _grouped_gemm_kernel(
    a_ptr, w_ptr, c_ptr, weights_ptr, sorted_ids_ptr, expert_ids_ptr, num_padded_ptr, num_pairs, padded_bound, N, K,
    TOP_K: tl.constexpr, WEIGHTED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M pairs of one expert times BLOCK_N of its columns. Pair p reads row p // TOP_K of A."""
    block_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(padded_bound, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    if block_m * BLOCK_M >= tl.load(num_padded_ptr):
        return
    pairs = tl.load(sorted_ids_ptr + block_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    real = pairs < num_pairs
    expert = tl.load(expert_ids_ptr + block_m).to(tl.int64)
    cols, ks = tile_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if expert >= 0:  # -1: the expert lives on another GPU; its rows are zeros here
        a_at = a_ptr + (pairs // TOP_K)[:, None] * K + ks[None, :]
        w_at = w_ptr + expert * N * K + (cols % N)[None, :].to(tl.int64) * K + ks[:, None]
        for k in range(0, K, BLOCK_K):
            a = tl.load(a_at, mask=real[:, None] & (ks[None, :] < K - k), other=0.0)
            w = tl.load(w_at, mask=ks[:, None] < K - k, other=0.0)
            acc = tl.dot(a, w, acc, input_precision="ieee")
            a_at += BLOCK_K
            w_at += BLOCK_K
        if WEIGHTED:
            acc = acc * tl.load(weights_ptr + pairs, mask=real, other=0.0)[:, None]
    c_at = c_ptr + pairs[:, None] * N + cols[None, :]
    tl.store(c_at, acc.to(c_ptr.dtype.element_ty), mask=real[:, None] & (cols[None, :] < N))


def grouped_gemm(
    a: torch.Tensor,
    w: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    *,
    top_k: int,
    num_pairs: int,
    block: tuple[int, int, int],
    topk_weights: torch.Tensor | None = None,
    group_m: int = 8,
    num_warps: int = 4,
    num_stages: int = 4,
) -> torch.Tensor:
    """C[p] = A[p // top_k] @ w[expert of pair p].T (times the pair's weight), for all pairs p.

    Args:
        a: [num_pairs // top_k, K], contiguous. For the second product of an expert its rows are pairs: top_k = 1.
        w: [num_experts, N, K], in a's dtype, contiguous.
        sorted_token_ids: [padded] int: pairs sorted by expert; num_pairs or more marks padding.
        expert_ids: [padded // BLOCK_M] int: the expert of each block of BLOCK_M pairs, or -1.
        num_tokens_post_padded: [1] int: how much of sorted_token_ids is in use; stays on the GPU.
        block: BLOCK_M, BLOCK_N, BLOCK_K; BLOCK_M is the block size that the pairs were aligned to.
        topk_weights: [num_pairs] float32; multiplied in float32 before the result is rounded.

    Returns:
        [num_pairs, N], in a's dtype.

    Raises:
        ValueError: "a has K columns, w has L".
    """
    _, N, K = w.shape
    if a.shape[1] != K:
        raise ValueError(f"a has {a.shape[1]} columns, w has {K}")
    c = a.new_empty(num_pairs, N)
    padded = len(expert_ids) * block[0]
    _grouped_gemm_kernel[(len(expert_ids) * triton.cdiv(N, block[1]),)](
        a, w, c, topk_weights, sorted_token_ids, expert_ids, num_tokens_post_padded, num_pairs, padded, N, K,
        TOP_K=top_k, WEIGHTED=topk_weights is not None,
        BLOCK_M=block[0], BLOCK_N=block[1], BLOCK_K=block[2], GROUP_M=group_m,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return c


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    alignment: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    block: tuple[int, int, int],
    **launch: Any,
) -> torch.Tensor:
    """The expert half of a MoE layer: product, SiLU gate, product, sum over each token's experts.

    Args:
        x: [num_tokens, hidden]. w13: [num_experts, 2 * inter, hidden], gate first. w2: [num_experts, hidden, inter].
        topk_weights: [num_tokens, top_k] float32.
        alignment: what `moe_align_block_size(topk_ids, block[0], num_experts)` gave, on x's device.

    Returns:
        [num_tokens, hidden], in x's dtype.
    """
    num_tokens, top_k = topk_weights.shape
    pairs = num_tokens * top_k
    gate, up = grouped_gemm(x, w13, *alignment, top_k=top_k, num_pairs=pairs, block=block, **launch).chunk(2, dim=-1)
    inner = torch.nn.functional.silu(gate) * up
    out = grouped_gemm(
        inner, w2, *alignment, top_k=1, num_pairs=pairs, block=block, topk_weights=topk_weights.flatten(), **launch
    )
    return out.view(num_tokens, top_k, -1).sum(dim=1)
