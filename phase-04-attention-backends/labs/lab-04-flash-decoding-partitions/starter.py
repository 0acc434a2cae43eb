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
    raise NotImplementedError("the summary that changes nothing, whatever it is merged with")


def attend_partial(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Summary:
    """The summary of these keys for this query. No argument is changed.

    Args:
        q: [d].
        k: [n, d]; n may be 0, and then the summary is the identity.
        v: [n, dv].

    Returns:
        m and denom as floats, acc [dv], computed in float64 whatever comes in. Scores of any size are allowed.
    """
    raise NotImplementedError(
        "largest score, sum of weights and weighted sum of values of these keys, and the identity for none"
    )


def merge_two(a: Summary, b: Summary) -> Summary:
    """The summary of both sets of keys together: field by field what `attend_partial` of all of them gives.

    Two identities give the identity. Both arguments stay as they are, arrays included: who has a summary may merge it
    with several others.

    Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:646 — `reduce_segments`, which does it for 16.
    """
    raise NotImplementedError("the summary that attend_partial would give for the keys of both, without seeing a key")


def merge_partials(parts: Iterable[Summary]) -> np.ndarray:
    """The attention output [dv] of all parts' keys together. Identities among the parts change nothing.

    Args:
        parts: the summaries, in any order; they are read once, and stay as they are.

    Raises:
        ValueError: no part has a key ("nothing to attend to").
    """
    raise NotImplementedError(
        "the attention output of everything that the parts have seen, or a refusal where they saw nothing"
    )


def partitioned_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, num_partitions: int) -> np.ndarray:
    """Attention of one query over all keys, [dv], split over `num_partitions` partitions.

    Each partition is summarised by one call of `attend_partial`; their sizes differ by one key at most. With more
    partitions than keys some are empty, and those may be left out.
    """
    raise NotImplementedError("the output over all keys, from summaries of num_partitions nearly equal partitions")


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
    raise NotImplementedError("the output over the keys of both parts, and the logarithm of its sum of exp(s_i)")


def decode_rounds(
    num_requests: int, num_kv_heads: int, num_blocks: int, num_splits: int, num_sms: int, programs_per_sm: int
) -> int:
    """A model of a decode kernel's time: blocks of K and V that the busiest place on the chip reads in a row.

    Each request and KV head has a program for each of its `num_splits` parts, also where there are fewer blocks than
    parts, and the largest part counts for all. A multiprocessor holds `programs_per_sm` programs at a time, the chip
    `num_sms` times as many; the next wave begins when the one before has ended. The merge is left out, and so is the
    bandwidth of memory.
    """
    raise NotImplementedError("the blocks that the busiest place on the chip reads, one after the other, in all waves")
