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
    raise NotImplementedError(
        "compute all scores, subtract their maximum, exponentiate, and divide the weighted sum of v by the sum of"
        " weights"
    )


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
    raise NotImplementedError(
        "find the new maximum, shrink denom and acc by exp(m - m_new), and add the tile's weights and weighted values"
    )


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
    raise NotImplementedError(
        "walk the blocks of the table in logical order, read the valid slots of each, update the state, divide at"
        " the end"
    )
