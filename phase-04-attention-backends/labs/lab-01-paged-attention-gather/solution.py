"""Lab 04-01: attention in one pass over scattered blocks, with three numbers of memory: the heart of every kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def dense_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One query over n keys, all scores at once: the judge.

    Args:
        q: [d].
        k: [n, d], n at least 1.
        v: [n, dv].

    Returns:
        softmax(q k^T / sqrt(d)) v, [dv], in float64 whatever comes in. Scores of any size are allowed.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = k @ q / np.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    return weights @ v / weights.sum()


def online_update(
    m: float, denom: float, acc: np.ndarray, scores: np.ndarray, values: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """Take one more tile of keys into the running state.

    Args:
        m: the largest score so far; -inf before the first.
        denom: the weights exp(score - m) of all keys so far, added up.
        acc: their values with these weights, added up, [dv]; not changed in place.
        scores: the tile's scores, [t]; -inf marks a key that must not be seen.
        values: its values, [t, dv].

    Returns:
        The new (m, denom, acc). A tile in which every score is -inf leaves the state as it was, even at the start.

    Upstream: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:361 — `softmax_step`.
    """
    m_new = max(m, float(np.max(scores)))
    if m_new == -np.inf:
        return m, denom, acc
    correction = np.exp(m - m_new)
    p = np.exp(scores - m_new)
    return m_new, float(denom * correction + p.sum()), acc * correction + p @ values


def paged_online_attention(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, block_table: Sequence[int], seq_len: int
) -> np.ndarray:
    """One query over the first `seq_len` tokens of a paged cache, block by block, without ever holding all scores.

    Args:
        q: [d].
        k_cache: [num_blocks, block_size, d].
        v_cache: [num_blocks, block_size, dv].
        block_table: physical block of each logical block; may be longer than needed.
        seq_len: tokens to attend to.

    Returns:
        [dv] in float64. Slots beyond `seq_len` may hold anything, NaN included, and are not read.

    Raises:
        ValueError: seq_len is less than 1, or the table has fewer slots: "seq_len must be 1 to SLOTS, got SEQ_LEN".
    """
    block_size = k_cache.shape[1]
    if not 1 <= seq_len <= len(block_table) * block_size:
        raise ValueError(f"seq_len must be 1 to {len(block_table) * block_size}, got {seq_len}")
    q = np.asarray(q, np.float64)
    m, denom, acc = -np.inf, 0.0, np.zeros(v_cache.shape[2])
    for start in range(0, seq_len, block_size):
        block = block_table[start // block_size]
        valid = min(block_size, seq_len - start)
        keys = np.asarray(k_cache[block, :valid], np.float64)
        values = np.asarray(v_cache[block, :valid], np.float64)
        m, denom, acc = online_update(m, denom, acc, keys @ q / np.sqrt(len(q)), values)
    return acc / denom
