"""Prefill attention over a paged cache: many queries per request, causal, grouped heads, ragged batches.

A program takes a tile of queries of one request and one KV head. Its rows are (query, head of the group) pairs, so that
each key and value that it loads serves the whole group. Causality is the end of the key loop; only the tiles that the
diagonal crosses need a mask. K and V of the chunk itself must be in the cache already: write before read.

Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:179 — `kernel_unified_attention` (2D).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = 2 ** (x log2(e)), and the chip has an instruction for 2 ** y


@triton.jit
def _attend_tile(
    q, m, l, acc, start, positions, seq_len, kv_head, k_ptr, v_ptr, table_ptr, scale,  # noqa: E741
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys start .. start + TILE into the summary (m, l, acc) of each row of q; m is in powers of two."""
    token = start + tl.arange(0, TILE)
    dims = tl.arange(0, HEAD_DIM)
    if MASKED:
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=token < seq_len, other=0).to(tl.int64)
    else:
        block = tl.load(table_ptr + token // BLOCK_SIZE).to(tl.int64)
    slot = block * BLOCK_SIZE + token % BLOCK_SIZE
    at = (slot * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
    if MASKED:
        k = tl.load(k_ptr + at, mask=(token < seq_len)[:, None], other=0.0)
        v = tl.load(v_ptr + at, mask=(token < seq_len)[:, None], other=0.0)
    else:
        k = tl.load(k_ptr + at)
        v = tl.load(v_ptr + at)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2E)
    if MASKED:
        scores = tl.where(token[None, :] <= positions[:, None], scores, float("-inf"))
    new_m = tl.maximum(m, tl.max(scores, axis=1))
    shrink, weights = tl.exp2(m - new_m), tl.exp2(scores - new_m[:, None])
    l = l * shrink + tl.sum(weights, axis=1)  # noqa: E741
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_m, l, acc


@triton.jit
def _prefill_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, starts_ptr, lens_ptr, scale, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: ROWS // GROUP queries (axis 0) of one KV head (axis 1) of one request (axis 2)."""
    QUERIES: tl.constexpr = ROWS // GROUP
    # The last queries have the longest rows: programs start in the order of their numbers, so the longest go first.
    tile, kv_head, seq = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts_ptr + seq)
    num_queries = tl.load(starts_ptr + seq + 1) - begin
    first = tile * QUERIES
    if first >= num_queries:
        return
    seq_len = tl.load(lens_ptr + seq)
    context = seq_len - num_queries  # tokens before this chunk
    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)
    query = first + rows // GROUP
    real = (rows < QUERIES * GROUP) & (query < num_queries)
    positions = context + query
    q_rows = ((begin + query).to(tl.int64) * NUM_KV_HEADS + kv_head) * GROUP + rows % GROUP
    q_at = q_rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=real[:, None], other=0.0)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)  # noqa: E741
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)

    table_ptr = tables_ptr + seq * table_stride
    everyone_sees = (context + first + 1) // TILE * TILE  # keys below this precede all queries of the program
    end = tl.minimum(context + first + QUERIES, seq_len)
    for start in range(0, everyone_sees, TILE):
        m, l, acc = _attend_tile(  # noqa: E741
            q, m, l, acc, start, positions, seq_len, kv_head, k_ptr, v_ptr, table_ptr, scale,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, MASKED=False,
        )  # fmt: skip
    for start in range(everyone_sees, end, TILE):
        m, l, acc = _attend_tile(  # noqa: E741
            q, m, l, acc, start, positions, seq_len, kv_head, k_ptr, v_ptr, table_ptr, scale,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, MASKED=True,
        )  # fmt: skip
    tl.store(out_ptr + q_at, (acc / l[:, None]).to(out_ptr.dtype.element_ty), mask=real[:, None])


def paged_prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    *,
    rows: int = 128,
    tile: int = 64,
    num_warps: int = 4,
    num_stages: int = 3,
) -> torch.Tensor:
    """Causal attention of the last queries of each request over all of its tokens.

    Query i of request s stands at position seq_lens[s] - (its number of queries) + i, and sees the keys up to its own.

    Args:
        q: [num_tokens, num_heads, head_dim]: the queries of all requests, one request after the other; contiguous.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], in q's dtype, contiguous.
        block_tables: [num_seqs, max_blocks] int32.
        query_start_loc: [num_seqs + 1] int32: where each request's queries begin in q; the last entry is num_tokens.
        seq_lens: [num_seqs] int32: tokens in the cache, this chunk included.
        max_query_len: the longest chunk; sizes the grid.
        rows: rows of a program, (query, head) pairs; a power of two, at least 16 and at least num_heads / num_kv_heads.
        tile: keys per loop turn, a power of two, at least 16; independent of the block size.

    Returns:
        [num_tokens, num_heads, head_dim], in q's dtype.

    Raises:
        ValueError: "num_heads H is not a multiple of num_kv_heads K", "head_dim D is not a power of two from 16 on",
            "rows R is less than the G heads of a group".
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim {head_dim} is not a power of two from 16 on")
    group = num_heads // num_kv_heads
    if rows < group:
        raise ValueError(f"rows {rows} is less than the {group} heads of a group")
    out = torch.empty_like(q)
    grid = (triton.cdiv(max_query_len, rows // group), num_kv_heads, len(seq_lens))
    _prefill_kernel[grid](
        out, q, k_cache, v_cache, block_tables, query_start_loc, seq_lens, head_dim**-0.5, block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, ROWS=rows, TILE=tile,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return out
