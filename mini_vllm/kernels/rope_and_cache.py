"""Between the qkv product and attention, in one pass: norms of the heads, rotation, and the write into the cache.

Upstream does it in two or three kernels:
upstream/csrc/libtorch_stable/fused_qknorm_rope_kernel.cu:104 — `fusedQKNormRopeKernel`,
upstream/csrc/cache_kernels.cu:304 — `reshape_and_cache_flash_kernel`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rope_and_cache_kernel(
    qkv_ptr, q_ptr, k_cache_ptr, v_cache_ptr, positions_ptr, slots_ptr, cos_sin_ptr, q_norm_ptr, k_norm_ptr, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One program: one head of one token: a query head (to q), or a key head with its value (to the cache)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2
    half = tl.arange(0, HALF)
    base = qkv_ptr + token * (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM + head * HEAD_DIM
    first, second = tl.load(base + half).to(tl.float32), tl.load(base + HALF + half).to(tl.float32)
    is_key = head >= NUM_HEADS
    if NORM:
        scale = 1.0 / tl.sqrt((tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / HEAD_DIM + eps)
        weight_ptr = q_norm_ptr
        if is_key:
            weight_ptr = k_norm_ptr
        first = first * scale * tl.load(weight_ptr + half).to(tl.float32)
        second = second * scale * tl.load(weight_ptr + HALF + half).to(tl.float32)
    angle = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * HEAD_DIM
    cos, sin = tl.load(angle + half), tl.load(angle + HALF + half)
    turned_first, turned_second = first * cos - second * sin, second * cos + first * sin
    if is_key:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        if slot >= 0:
            kv_head = head - NUM_HEADS
            at = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM
            tl.store(k_cache_ptr + at + half, turned_first.to(k_cache_ptr.dtype.element_ty))
            tl.store(k_cache_ptr + at + HALF + half, turned_second.to(k_cache_ptr.dtype.element_ty))
            dims = tl.arange(0, HEAD_DIM)
            value = tl.load(base + NUM_KV_HEADS * HEAD_DIM + dims)
            tl.store(v_cache_ptr + at + dims, value.to(v_cache_ptr.dtype.element_ty))
    else:
        out = q_ptr + (token * NUM_HEADS + head) * HEAD_DIM
        tl.store(out + half, turned_first.to(q_ptr.dtype.element_ty))
        tl.store(out + HALF + half, turned_second.to(q_ptr.dtype.element_ty))


def rope_and_cache(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
) -> torch.Tensor:
    """Rotated queries, [T, Hq, D]; rotated keys, and values, are in the cache afterwards.

    Args:
        qkv: [T, (Hq + 2 Hkv) * D], contiguous. positions, slots: [T]; a slot below 0: the token is not stored.
        cos_sin: [max_position, D] float32, cosines beside sines.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], contiguous.
        norms: weights [D] of the RMS norms of query and key heads; None: there are none.
    """
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    q = qkv.new_empty(len(qkv), num_heads, head_dim)
    q_norm, k_norm = norms if norms is not None else (qkv, qkv)
    _rope_and_cache_kernel[(len(qkv), num_heads + num_kv_heads)](
        qkv, q, k_cache, v_cache, positions, slots, cos_sin, q_norm, k_norm, eps,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, NORM=norms is not None, num_warps=1,
    )  # fmt: skip
    return q
