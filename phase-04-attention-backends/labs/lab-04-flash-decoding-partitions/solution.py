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
    return Summary(-np.inf, 0.0, np.zeros(dv))


def attend_partial(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Summary:
    """The summary of these keys for this query. q: [d]; k: [n, d]; v: [n, dv]; n may be 0. Computed in float64."""
    if not len(k):
        return identity(np.shape(v)[1])
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = k @ q / np.sqrt(len(q))
    m = float(scores.max())
    p = np.exp(scores - m)
    return Summary(m, float(p.sum()), p @ v)


def merge_two(a: Summary, b: Summary) -> Summary:
    """The summary of both sets of keys together. Two identities give the identity.

    Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:646 — `reduce_segments`, which does it for 16.
    """
    m = max(a.m, b.m)
    if m == -np.inf:
        return a
    weight_a, weight_b = np.exp(a.m - m), np.exp(b.m - m)
    denom = float(a.denom * weight_a + b.denom * weight_b)
    return Summary(m, denom, a.acc * weight_a + b.acc * weight_b)


def merge_partials(parts: Iterable[Summary]) -> np.ndarray:
    """Merge them all, then divide: the attention output [dv]. Identities among the parts change nothing.

    Raises:
        ValueError: no part has a key ("nothing to attend to").
    """
    total: Summary | None = None
    for part in parts:
        total = part if total is None else merge_two(total, part)
    if total is None or total.m == -np.inf:
        raise ValueError("nothing to attend to")
    return total.acc / total.denom


def partitioned_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, num_partitions: int) -> np.ndarray:
    """Attention of one query over all keys, in `num_partitions` nearly equal runs of keys (some may be empty)."""
    runs = np.array_split(np.arange(len(k)), num_partitions)
    return merge_partials(attend_partial(q, k[run], v[run]) for run in runs)


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
    m = max(lse_a, lse_b)
    if m == -np.inf:
        return out_a, m
    weight_a, weight_b = np.exp(lse_a - m), np.exp(lse_b - m)
    total = weight_a + weight_b
    return (out_a * weight_a + out_b * weight_b) / total, float(m + np.log(total))


def decode_rounds(
    num_requests: int, num_kv_heads: int, num_blocks: int, num_splits: int, num_sms: int, programs_per_sm: int
) -> int:
    """A model of a decode kernel's time: blocks of K and V that the busiest place on the chip reads in a row.

    Each request and KV head has a program for each of its `num_splits` parts, and the largest part counts for all. A
    multiprocessor holds `programs_per_sm` programs at a time, the chip `num_sms` times as many; the next wave begins
    when the one before has ended. The merge is left out, and so is the bandwidth of memory.
    """
    programs = num_requests * num_kv_heads * num_splits
    waves = -(-programs // (num_sms * programs_per_sm))
    return waves * -(-num_blocks // num_splits)
