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
    raise NotImplementedError(
        "in float64: give each query head its KV head, scale the scores by 1/sqrt(head_dim), softmax, weighted"
        " sum of the values"
    )


def paged_attention_ref(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    acc_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The kernel's algorithm in torch: per request a loop over its logical blocks with an online softmax.

    Never more than one block's keys and values are looked at: m is the maximum so far, l the sum of exponentials, acc
    the weighted sum of values; a new maximum rescales l and acc. All arithmetic is done in `acc_dtype`.

    Returns:
        [num_seqs, num_heads, head_dim], in q's dtype.
    """
    raise NotImplementedError(
        "for each request walk its logical blocks, look each up in the block table, cut the last one at "
        "seq_len, and update m, l and acc"
    )


@triton.jit
def _paged_decode_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: one request (axis 0) and one KV head (axis 1) with the GROUP query heads that read it.

    Walks the request TILE tokens at a time. GROUP_PAD (a power of two, at least 16, for tl.dot) rows of q are loaded;
    those beyond GROUP are zeros. m, l and acc are float32. A token at or beyond seq_len must not count.
    """
    raise NotImplementedError(
        "load q, walk the tokens in tiles, turn token numbers into slots through the block table, mask what is"
        " beyond seq_len, update m, l and acc, and store acc / l"
    )


def paged_attention_triton(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    tile: int = 64,
) -> torch.Tensor:
    """Check the shapes and launch the kernel, one program per request and KV head.

    Args:
        tile: tokens per loop turn; a power of two, at least 16, and independent of the block size.

    Returns:
        [num_seqs, num_heads, head_dim], in q's dtype.

    Raises:
        ValueError: "num_heads H is not a multiple of num_kv_heads K".
    """
    raise NotImplementedError(
        "check the heads, make the output, and launch _paged_decode_kernel on the grid (num_seqs, num_kv_heads)"
    )
