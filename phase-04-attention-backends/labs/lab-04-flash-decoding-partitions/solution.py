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
    """The summary of no keys, for values of dv numbers: merged with any other, on either side, it changes nothing.

    Its m is -inf, its denom 0.0, its acc [dv] zeros.
    """
    return Summary(-np.inf, 0.0, np.zeros(dv))


def attend_partial(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Summary:
    """The summary of these keys for this query. No argument is changed.

    Args:
        q: [d].
        k: [n, d]; n may be 0, and then the summary is the identity.
        v: [n, dv].

    Returns:
        m and denom as floats, acc [dv], computed in float64 whatever comes in. Scores of any size are allowed.
    """
    if not len(k):
        return identity(np.shape(v)[1])
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = k @ q / np.sqrt(len(q))
    m = float(scores.max())
    p = np.exp(scores - m)
    return Summary(m, float(p.sum()), p @ v)


def merge_two(a: Summary, b: Summary) -> Summary:
    """The summary of both sets of keys together: field by field what `attend_partial` of all of them gives.

    Two identities give the identity. Both arguments stay as they are, arrays included: who has a summary may merge it
    with several others.

    Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:646 — `reduce_segments`, which does it for 16.
    """
    m = max(a.m, b.m)
    if m == -np.inf:
        return a
    weight_a, weight_b = np.exp(a.m - m), np.exp(b.m - m)
    denom = float(a.denom * weight_a + b.denom * weight_b)
    return Summary(m, denom, a.acc * weight_a + b.acc * weight_b)


def merge_partials(parts: Iterable[Summary]) -> np.ndarray:
    """The attention output [dv] of all parts' keys together. Identities among the parts change nothing.

    Args:
        parts: the summaries, in any order; they are read once, and stay as they are.

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
    """Attention of one query over all keys, [dv], split over `num_partitions` partitions.

    Each partition is summarised by one call of `attend_partial`; their sizes differ by one key at most. With more
    partitions than keys some are empty, and those may be left out.
    """
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
        (output, lse) of both together. Scores of any size are allowed; so are two empty parts, whose output is finite
        too. No argument is changed.

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

    Each request and KV head has a program for each of its `num_splits` parts, also where there are fewer blocks than
    parts, and the largest part counts for all. A multiprocessor holds `programs_per_sm` programs at a time, the chip
    `num_sms` times as many; the next wave begins when the one before has ended. The merge is left out, and so is the
    bandwidth of memory.
    """
    programs = num_requests * num_kv_heads * num_splits
    waves = -(-programs // (num_sms * programs_per_sm))
    return waves * -(-num_blocks // num_splits)
