"""Lab 02-06: the two maps of a paged KV cache, and attention through them, in numpy.

Shapes: R requests, T tokens of a step, Hq query heads, Hkv key and value heads (Hq is a multiple of Hkv), D the size of
a head. A cache is flat: `[num_slots, Hkv, D]` with num_slots = num_blocks * block_size. Slot s is place
s % block_size of block s // block_size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def build_slot_mapping(block_table: Array, block_size: int, start: int, num_tokens: int) -> Array:
    """The write map: the slot of each token of this step.

    Args:
        block_table: [num_blocks_of_request] physical block ids, logical block 0 first; any integer type.
        block_size: tokens per block.
        start: position of the first token of this step (tokens that were computed before).
        num_tokens: tokens of this step.

    Returns:
        [num_tokens] int64: the slots of positions start .. start + num_tokens - 1.
    """
    positions = np.arange(start, start + num_tokens, dtype=np.int64)
    blocks = np.asarray(block_table, dtype=np.int64)[positions // block_size]
    return blocks * block_size + positions % block_size


def write_kv(k_cache: Array, v_cache: Array, new_k: Array, new_v: Array, slot_mapping: Array) -> None:
    """Put the new keys and values [T, Hkv, D] into their slots, in place; slot -1 means "padding, write nothing".

    Only the caches change.
    """
    real = slot_mapping >= 0
    k_cache[slot_mapping[real]] = new_k[real]
    v_cache[slot_mapping[real]] = new_v[real]


def softmax(scores: Array) -> Array:
    """exp of the scores over its sum along the last axis, also where exp alone would overflow; same shape and dtype."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def paged_attention(
    q: Array, k_cache: Array, v_cache: Array, block_table: Array, seq_len: int, block_size: int
) -> Array:
    """Decode attention of one request: its newest token looks at all `seq_len` tokens, its own included.

    Ordinary scaled dot-product attention, grouped heads included: neighbours share a KV head. What stands in slots that
    hold none of these tokens must not matter, be it NaN; the same content in other blocks gives the same bits.

    Args:
        q: [Hq, D].
        k_cache, v_cache: [num_slots, Hkv, D].
        block_table: one entry for each block of the request, perhaps more; what stands behind its last must not matter.
        seq_len: tokens of the request in the cache, at least 1.

    Returns:
        [Hq, D], in the dtype that q and the caches share.
    """
    slots = build_slot_mapping(block_table, block_size, 0, seq_len)
    keys, values = k_cache[slots], v_cache[slots]
    group = q.shape[0] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    weights = softmax(np.einsum("hd,thd->ht", q, keys) / math.sqrt(q.shape[-1]))
    return np.einsum("ht,thd->hd", weights, values)


def paged_attention_batch(
    q: Array, k_cache: Array, v_cache: Array, block_tables: Array, seq_lens: Array, block_size: int
) -> Array:
    """The same for R requests of different lengths, at least one.

    Args:
        q: [R, Hq, D].
        block_tables: [R, max_blocks]; entries behind a request's last block are 0.
        seq_lens: [R], each at least 1.

    Returns:
        [R, Hq, D], row r as if request r were alone.
    """
    rows = [
        paged_attention(q[r], k_cache, v_cache, block_tables[r], int(seq_lens[r]), block_size) for r in range(len(q))
    ]
    return np.stack(rows)
