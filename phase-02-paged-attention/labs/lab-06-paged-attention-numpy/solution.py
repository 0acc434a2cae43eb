"""Lab 02-06: the two maps of a paged KV cache, and attention through them, in numpy.

Shapes: R requests, T tokens of a step, Hq query heads, Hkv key and value heads (Hq is a multiple of Hkv), D the size of
a head. A cache is flat: `[num_slots, Hkv, D]` with num_slots = num_blocks * block_size. Slot s is place
s % block_size of block s // block_size.
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
    positions = np.arange(start, start + num_tokens, dtype=np.int64)
    blocks = np.asarray(block_table, dtype=np.int64)[positions // block_size]
    return blocks * block_size + positions % block_size


def write_kv(k_cache: Array, v_cache: Array, new_k: Array, new_v: Array, slot_mapping: Array) -> None:
    """Scatter the new keys and values [T, Hkv, D] into the caches, in place; slot -1 means "padding, write nothing"."""
    real = slot_mapping >= 0
    k_cache[slot_mapping[real]] = new_k[real]
    v_cache[slot_mapping[real]] = new_v[real]


def softmax(scores: Array) -> Array:
    """Softmax over the last axis, with the maximum subtracted first."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


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
    slots = build_slot_mapping(block_table, block_size, 0, seq_len)
    keys, values = k_cache[slots], v_cache[slots]
    group = q.shape[0] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    weights = softmax(np.einsum("hd,thd->ht", q, keys) / np.sqrt(q.shape[-1]))
    return np.einsum("ht,thd->hd", weights, values)


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
    rows = [
        paged_attention(q[r], k_cache, v_cache, block_tables[r], int(seq_lens[r]), block_size) for r in range(len(q))
    ]
    return np.stack(rows)
