"""Lab 04-04: attention in pieces that can be computed anywhere and merged in any order: split-KV decode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Summary(NamedTuple):
    """All that attention needs to know of a set of keys. With s_i = k_i·q / sqrt(d):

    m = max s_i;  denom = sum of exp(s_i - m);  acc = sum of exp(s_i - m) * v_i, [dv], not divided by denom.
    """

    m: float
    denom: float
    acc: np.ndarray


def identity(dv: int) -> Summary:
    """The summary of no keys at all: merged with any other it changes nothing. m is -inf."""
    raise NotImplementedError("return the summary that changes nothing when it is merged: m is -inf, the sums are 0")


def attend_partial(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Summary:
    """The summary of these keys for this query. q: [d]; k: [n, d]; v: [n, dv]; n may be 0. Computed in float64."""
    raise NotImplementedError(
        "compute the scores, their maximum, and the two sums relative to it; no keys give the identity"
    )


def merge_two(a: Summary, b: Summary) -> Summary:
    """The summary of both sets of keys together. Two identities give the identity.

    Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:646 — `reduce_segments`, which does it for 16.
    """
    raise NotImplementedError("take the larger maximum, scale both sums of each side by exp(m - new m), and add")


def merge_partials(parts: Iterable[Summary]) -> np.ndarray:
    """Merge them all, then divide: the attention output [dv]. Identities among the parts change nothing.

    Raises:
        ValueError: no part has a key ("nothing to attend to").
    """
    raise NotImplementedError("merge all parts and divide once at the end; refuse if no part has a key")


def partitioned_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, num_partitions: int) -> np.ndarray:
    """Attention of one query over all keys, in `num_partitions` nearly equal runs of keys (some may be empty)."""
    raise NotImplementedError("cut the keys with np.array_split, summarise each run, and merge")


def merge_attn_states(out_a: np.ndarray, lse_a: float, out_b: np.ndarray, lse_b: float) -> tuple[np.ndarray, float]:
    """The same merge for parts that were divided already, but kept their weight.

    Args:
        out_a: acc / denom of the first part, [dv].
        lse_a: its m + log(denom), the logarithm of the sum of exp(s_i); -inf for a part without keys, whose `out_a`
            may hold anything finite.
        out_b, lse_b: the second part.

    Returns:
        (output, lse) of both together. Scores of any size are allowed; so are two empty parts.

    Upstream: upstream/vllm/v1/attention/ops/merge_attn_states.py:9 — `merge_attn_states`.
    """
    raise NotImplementedError(
        "weigh both outputs by exp(lse - larger lse), divide by the sum of weights, and return the lse of both"
    )


def decode_rounds(
    num_requests: int, num_kv_heads: int, num_blocks: int, num_splits: int, num_sms: int, programs_per_sm: int
) -> int:
    """A model of a decode kernel's time: blocks of K and V that the busiest place on the chip reads in a row.

    Each request and KV head has a program for each of its `num_splits` parts, and the largest part counts for all. A
    multiprocessor holds `programs_per_sm` programs at a time, the chip `num_sms` times as many; the next wave begins
    when the one before has ended. The merge is left out, and so is the bandwidth of memory.
    """
    raise NotImplementedError("the blocks that the busiest place on the chip reads, one after the other, in all waves")
