"""Decode attention through a block table: one query per request, grouped heads, and split-KV where programs are few.

A program takes one request, one KV head and one share ("split") of the request's tokens, and walks them in tiles with
an online softmax. With one split it writes the output. With several, each program leaves its summary (m, l, acc), and a
second kernel merges them: the summaries of two sets of tokens give the summary of their union, in any order.

Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:179 — `kernel_unified_attention` (3D), and
`reduce_segments`. It also does prefill, sliding windows, soft caps, ALiBi, sinks and 8-bit caches in the same kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _decode_kernel(
    out_ptr, m_ptr, l_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, NUM_SPLITS: tl.constexpr,
):  # fmt: skip
    """One program: one request, one KV head with the GROUP query heads that read it, one split of the tokens.

    GROUP_PAD (at least 16, which tl.dot wants) rows of q are loaded; those beyond GROUP are zeros and not stored.
    """
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq_len = tl.load(lens_ptr + seq)
    share = tl.cdiv(seq_len, NUM_SPLITS * TILE) * TILE  # tokens of a split: whole tiles, so that the last may be short
    first = split * share
    last = tl.minimum(first + share, seq_len)

    heads, dims = tl.arange(0, GROUP_PAD), tl.arange(0, HEAD_DIM)
    mine = heads < GROUP
    q_rows = (seq * NUM_KV_HEADS + kv_head) * GROUP + heads
    q = tl.load(q_ptr + q_rows[:, None] * HEAD_DIM + dims[None, :], mask=mine[:, None], other=0.0)
    m = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    l = tl.zeros([GROUP_PAD], tl.float32)  # noqa: E741
    acc = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    for start in range(first, last, TILE):
        token = start + tl.arange(0, TILE)
        inside = token < last
        block = tl.load(tables_ptr + seq * table_stride + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + token % BLOCK_SIZE
        kv_at = (slot * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + kv_at, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_m = tl.maximum(m, tl.max(scores, axis=1))
        shrink, weights = tl.exp(m - new_m), tl.exp(scores - new_m[:, None])
        v = tl.load(v_ptr + kv_at, mask=inside[:, None], other=0.0)
        l = l * shrink + tl.sum(weights, axis=1)  # noqa: E741
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        m = new_m

    rows = q_rows * NUM_SPLITS + split
    if NUM_SPLITS == 1:
        acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # a request of no tokens gives zeros
    else:
        tl.store(m_ptr + rows, m, mask=mine)
        tl.store(l_ptr + rows, l, mask=mine)
    tl.store(out_ptr + rows[:, None] * HEAD_DIM + dims[None, :], acc.to(out_ptr.dtype.element_ty), mask=mine[:, None])


@triton.jit
def _merge_kernel(out_ptr, acc_ptr, m_ptr, l_ptr, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr):
    """One program: one query head of one request; its NUM_SPLITS summaries become one output row."""
    row = tl.program_id(0)
    splits, dims = tl.arange(0, NUM_SPLITS), tl.arange(0, HEAD_DIM)
    m = tl.load(m_ptr + row * NUM_SPLITS + splits)
    highest = tl.max(m, axis=0)
    weight = tl.where(m == float("-inf"), 0.0, tl.exp(m - highest))  # an empty split counts nothing
    acc = tl.load(acc_ptr + (row * NUM_SPLITS + splits)[:, None] * HEAD_DIM + dims[None, :])
    total = tl.sum(weight * tl.load(l_ptr + row * NUM_SPLITS + splits), axis=0)
    out = tl.sum(weight[:, None] * acc, axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HEAD_DIM + dims, out.to(out_ptr.dtype.element_ty))


def choose_splits(num_programs: int, max_tokens: int, num_sms: int, tile: int = 64) -> int:
    """How many programs share one request and head, so that the chip is full: a power of two.

    Args:
        num_programs: requests times KV heads.
        max_tokens: the longest request that the block table can describe; no split gets less than two tiles of it.
        num_sms: multiprocessors of the GPU; four programs on each are enough.
    """
    splits = 1
    while num_programs * splits * 2 <= 4 * num_sms and splits * 4 * tile <= max_tokens:
        splits *= 2
    return splits


def paged_decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    num_splits: int | None = None,
    tile: int = 64,
    num_warps: int = 4,
    num_stages: int = 3,
) -> torch.Tensor:
    """Attention of one new token per request over everything that its block table names.

    Args:
        q: [num_seqs, num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], in q's dtype; contiguous, as is q.
        block_tables: [num_seqs, max_blocks] int32; entries beyond a request's length are not read.
        seq_lens: [num_seqs] int32, the new token included. A request of length 0 (padding) gives zeros.
        num_splits: programs per request and KV head, a power of two; None fills the GPU (`choose_splits`).
        tile: tokens per loop turn, a power of two, at least 16; independent of the block size.

    Returns:
        [num_seqs, num_heads, head_dim], in q's dtype.

    Raises:
        ValueError: "num_heads H is not a multiple of num_kv_heads K", "head_dim D is not a power of two from 16 on".
    """
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim {head_dim} is not a power of two from 16 on")
    if num_splits is None:
        sms = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1
        num_splits = choose_splits(num_seqs * num_kv_heads, block_tables.shape[1] * block_size, sms, tile)
    group = num_heads // num_kv_heads
    out = torch.empty_like(q)
    acc = out if num_splits == 1 else q.new_empty(num_seqs, num_heads, num_splits, head_dim, dtype=torch.float32)
    m, l = q.new_empty(2, num_seqs, num_heads, num_splits, dtype=torch.float32)  # noqa: E741
    _decode_kernel[(num_seqs, num_kv_heads, num_splits)](
        acc, m, l, q, k_cache, v_cache, block_tables, seq_lens, head_dim**-0.5, block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)), HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size, TILE=tile, NUM_SPLITS=num_splits, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    if num_splits > 1:
        _merge_kernel[(num_seqs * num_heads,)](out, acc, m, l, HEAD_DIM=head_dim, NUM_SPLITS=num_splits)
    return out
