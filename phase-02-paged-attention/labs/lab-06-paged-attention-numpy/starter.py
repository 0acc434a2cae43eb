"""Lab 02-06: the two maps of a paged KV cache, and attention through them, in numpy.

Shapes: R requests, T tokens of a step, Hq query heads, Hkv key and value heads (Hq is a multiple of Hkv), D the size of
a head. A cache is flat: `[num_slots, Hkv, D]` with num_slots = num_blocks * block_size. Slot s is place
s % block_size of block s // block_size.

Your work: every function that raises NotImplementedError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def build_slot_mapping(block_table: Array, block_size: int, start: int, num_tokens: int) -> Array:
    """The write map: the slot of each token of this step.

    Args:
        block_table: [num_blocks_of_request] physical block ids, logical block 0 first.
        block_size: tokens per block.
        start: position of the first token of this step (tokens that were computed before).
        num_tokens: tokens of this step.

    Returns:
        [num_tokens] int64: the slots of positions start .. start + num_tokens - 1.
    """
    raise NotImplementedError(
        "for each position p of the step: block_table[p // block_size] * block_size + p % block_size, as int64"
    )


def write_kv(k_cache: Array, v_cache: Array, new_k: Array, new_v: Array, slot_mapping: Array) -> None:
    """Scatter the new keys and values [T, Hkv, D] into the caches, in place; slot -1 means "padding, write nothing"."""
    raise NotImplementedError(
        "assign the new keys and values to the rows that slot_mapping names, leaving out the tokens with slot -1"
    )


def softmax(scores: Array) -> Array:
    """Softmax over the last axis, with the maximum subtracted first."""
    raise NotImplementedError("subtract the maximum of the last axis, exponentiate, divide by the sum")


def paged_attention(
    q: Array, k_cache: Array, v_cache: Array, block_table: Array, seq_len: int, block_size: int
) -> Array:
    """Decode attention of one request: its newest token looks at all `seq_len` tokens, its own included.

    Query head h reads KV head h // (Hq // Hkv); scores are scaled by 1 / sqrt(D).

    Args:
        q: [Hq, D].
        k_cache, v_cache: [num_slots, Hkv, D].
        block_table: [at least ceil(seq_len / block_size)]; what stands behind that must not matter.
        seq_len: tokens of the request in the cache.

    Returns:
        [Hq, D].
    """
    raise NotImplementedError(
        "gather the rows of positions 0 to seq_len - 1 through the block table, give each query head its KV "
        "head, and do ordinary attention"
    )


def paged_attention_batch(
    q: Array, k_cache: Array, v_cache: Array, block_tables: Array, seq_lens: Array, block_size: int
) -> Array:
    """The same for R requests of different lengths at once.

    Args:
        q: [R, Hq, D].
        block_tables: [R, max_blocks]; entries behind a request's last block are 0.
        seq_lens: [R], each at least 1.

    Returns:
        [R, Hq, D].
    """
    raise NotImplementedError("attention of each request over its own row of block_tables and its own length, stacked")
