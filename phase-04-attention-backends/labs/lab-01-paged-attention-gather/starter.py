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
        The average of the values, [dv], in which key i weighs exp(s_i) over the sum of these weights, with the scores
        s_i = k_i·q / sqrt(d). Computed in float64 whatever comes in; scores of any size are allowed.
    """
    raise NotImplementedError("one vector: the average of the values, weighed by the softmax of their keys' scores")


def online_update(
    m: float, denom: float, acc: np.ndarray, scores: np.ndarray, values: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """Take one more tile of keys into the running state. No argument is changed.

    Args:
        m: the largest score of all keys so far; -inf before the first.
        denom: the sum of exp(score - m) over them; 0.0 before the first.
        acc: the sum of exp(score - m) times the key's value over them, [dv]; zeros before the first.
        scores: the tile's scores, [t]; -inf marks a key that must not be seen.
        values: its values, [t, dv].

    Returns:
        (m, denom, acc) with the same meanings, of the keys so far and the tile's together: after any tiles in any order
        what one tile with all the keys would have left. A tile of hidden keys changes nothing, even as the first.

    Upstream: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:361 — `softmax_step`.
    """
    raise NotImplementedError(
        "largest score, sum of weights and weighted sum of values, of everything so far and this tile"
    )


def paged_online_attention(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, block_table: Sequence[int], seq_len: int
) -> np.ndarray:
    """One query over the first `seq_len` tokens of a paged cache, never with the scores of more than one block at hand.

    All that is known of the tokens so far is the state of `online_update`, which every score goes through; a call has
    at most block_size of them. No argument is changed.

    Args:
        q: [d].
        k_cache: [num_blocks, block_size, d].
        v_cache: [num_blocks, block_size, dv].
        block_table: physical block of each logical block; may be longer than needed.
        seq_len: tokens to attend to.

    Returns:
        As `dense_attention` of these tokens, [dv], computed in float64. Slots beyond `seq_len` may hold anything, NaN
        included.

    Raises:
        ValueError: seq_len is less than 1, or the table has fewer slots: "seq_len must be 1 to SLOTS, got SEQ_LEN".
    """
    raise NotImplementedError("what dense_attention gives for these tokens, from a state that does not grow with them")
