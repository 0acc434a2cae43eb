"""Lab 02-04: decode attention through a block table, as a Triton kernel.

Shapes: q [num_seqs, num_heads, head_dim] · k_cache, v_cache [num_blocks, block_size, num_kv_heads, head_dim] ·
block_tables [num_seqs, max_blocks] int32 · seq_lens [num_seqs] int32. num_heads is a multiple of num_kv_heads; head_dim
is a power of two, at least 16. Query head h reads KV head h // (num_heads // num_kv_heads).

Your work: every function that raises NotImplementedError, from top to bottom: judge, algorithm, kernel, launch.
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
    raise NotImplementedError("attention in float64, for others to be measured by")


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
    raise NotImplementedError(
        "the same attention through the block tables, holding one block's keys and values at a time"
    )


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
    raise NotImplementedError("one request's and one KV head's share of the output, read through the block table")


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
    raise NotImplementedError("attention of all requests, computed by _paged_decode_kernel")
