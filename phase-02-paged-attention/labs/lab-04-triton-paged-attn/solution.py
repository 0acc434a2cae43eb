"""Lab 02-04: decode attention through a block table, as a Triton kernel.

Shapes: q [num_seqs, num_heads, head_dim] · k_cache, v_cache [num_blocks, block_size, num_kv_heads, head_dim] ·
block_tables [num_seqs, max_blocks] int32 · seq_lens [num_seqs] int32. num_heads is a multiple of num_kv_heads; head_dim
is a power of two, at least 16. Query head h reads KV head h // (num_heads // num_kv_heads).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of one query token per head over contiguous keys, computed in float64: the judge of the others.

    Args:
        q: [num_heads, head_dim].
        k, v: [num_tokens, num_kv_heads, head_dim].

    Returns:
        [num_heads, head_dim], float64.
    """
    group = q.shape[0] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("hd,thd->ht", q.double(), keys) / q.shape[-1] ** 0.5
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values)


def paged_attention_ref(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    acc_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The kernel's algorithm in torch: block by block, and what is remembered of the blocks before does not grow.

    No tensor that it makes is larger than the output, or than the keys of one block with a copy for each query head: a
    request's scores, keys or values never stand side by side. All arithmetic is done in `acc_dtype`. Slots beyond
    `seq_len`, and entries of a block table behind the last block, may hold anything.

    Returns:
        [num_seqs, num_heads, head_dim], in q's dtype.
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.empty_like(q)
    for row in range(len(q)):
        query = q[row].to(acc_dtype).view(num_kv_heads, -1, head_dim)
        m = torch.full(query.shape[:2], float("-inf"), dtype=acc_dtype, device=q.device)
        l, acc = torch.zeros_like(m), torch.zeros_like(query)  # noqa: E741
        for start in range(0, int(seq_lens[row]), block_size):
            block = int(block_tables[row, start // block_size])
            count = min(block_size, int(seq_lens[row]) - start)
            k, v = (cache[block, :count].to(acc_dtype).transpose(0, 1) for cache in (k_cache, v_cache))
            scores = query @ k.transpose(1, 2) * head_dim**-0.5
            new_m = torch.maximum(m, scores.amax(dim=-1))
            shrink, weights = (m - new_m).exp(), (scores - new_m[..., None]).exp()
            l, acc = l * shrink + weights.sum(dim=-1), acc * shrink[..., None] + weights @ v  # noqa: E741
            m = new_m
        out[row] = (acc / l[..., None]).view(num_heads, head_dim).to(q.dtype)
    return out


@triton.jit
def _paged_decode_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: one request (axis 0) and one KV head (axis 1) with the GROUP query heads that read it.

    Walks the request TILE tokens at a time, and accumulates in float32. GROUP_PAD is the number of rows that tl.dot
    gets (a power of two, at least 16); GROUP of them are real. A token at or beyond seq_len must not count, whatever
    its slot holds. The parameters are a proposal: only your launcher calls this.
    """
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(lens_ptr + seq)
    heads, dims = tl.arange(0, GROUP_PAD), tl.arange(0, HEAD_DIM)
    q_rows = (seq * NUM_KV_HEADS + kv_head) * GROUP + heads
    q_at = q_rows[:, None] * HEAD_DIM + dims[None, :]
    mine = heads[:, None] < GROUP
    q = tl.load(q_ptr + q_at, mask=mine, other=0.0)
    m = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    l = tl.zeros([GROUP_PAD], tl.float32)  # noqa: E741
    acc = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    for start in range(0, seq_len, TILE):
        token = start + tl.arange(0, TILE)
        inside = token < seq_len
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
    out = acc / l[:, None]
    tl.store(out_ptr + q_at, out.to(out_ptr.dtype.element_ty), mask=mine)


def paged_attention_triton(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    tile: int = 64,
) -> torch.Tensor:
    """Attention of all requests by one launch of the kernel, one program per request and KV head.

    No input is changed.

    Args:
        tile: tokens per loop turn; a power of two, at least 16, and independent of the block size.

    Returns:
        [num_seqs, num_heads, head_dim], in q's dtype.

    Raises:
        ValueError: "num_heads H is not a multiple of num_kv_heads K".
    """
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
    group = num_heads // num_kv_heads
    out = torch.empty_like(q)
    _paged_decode_kernel[(num_seqs, num_kv_heads)](
        out, q, k_cache, v_cache, block_tables, seq_lens, head_dim**-0.5, block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim, BLOCK_SIZE=block_size, TILE=tile,
    )  # fmt: skip
    return out
