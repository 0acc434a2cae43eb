"""Lab 05-05: a ladder of sizes instead of a graph for every size, what the padding costs, and how to pad safely.

A size is a number of tokens in a step. It equals the number of requests only where each of them decodes one token.
"""

from __future__ import annotations

from bisect import bisect_left  # noqa: F401  (for you)
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


def max_capture_size(max_num_seqs: int, max_num_batched_tokens: int, decode_query_len: int = 1) -> int:
    """The upper end of the default ladder: twice the tokens of a full decode step, at most 512, at most the budget.

    Args:
        decode_query_len: tokens of one decoding request in a step: 1, or 1 + drafts with speculation.
    """
    raise NotImplementedError("take twice the tokens of a full decode step, and no more than 512 or the budget")


def default_capture_sizes(max_size: int) -> list[int]:
    """The ladder: 1, 2, 4, then every 8 below 256, then every 16; only what is not above `max_size`. Ascending."""
    raise NotImplementedError(
        "build 1, 2, 4, then steps of 8 below 256, then steps of 16, and keep what is not above max_size"
    )


def select_capture_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest size that holds the tokens; None above the largest one: that step has no graph.

    Args:
        sizes: ascending, not empty.
    """
    raise NotImplementedError("find the smallest size that is at least num_tokens, or return None")


def padded_tokens(num_tokens: int, sizes: Sequence[int]) -> int:
    """Rows that carry nobody's token in this step; 0 where no graph is used, for then nothing is padded."""
    raise NotImplementedError("subtract the tokens from the selected size, or return 0 without one")


def trace_waste(trace: Iterable[int], sizes: Sequence[int]) -> int:
    """Padded rows over all steps of a trace, given as the number of tokens in each step."""
    raise NotImplementedError("sum the padded rows over the steps")


def waste_fraction(trace: Sequence[int], sizes: Sequence[int]) -> float:
    """Padded rows per REAL row over a trace; 0.0 for a trace without tokens."""
    raise NotImplementedError("divide the padded rows by the real ones")


def capture_order(sizes: Iterable[int]) -> list[int]:
    """In which order to record: the largest first, so that the smaller ones fit into memory that is there already."""
    raise NotImplementedError("sort with the largest first")


def pool_bytes(order: Iterable[int], bytes_per_token: int) -> int:
    """Memory of a pool that all recordings share, one after the other, when they are made in this order.

    A recording of n tokens needs one piece of n * bytes_per_token. When it is made, earlier recordings have finished
    and their pieces are free: it takes the smallest free piece that is large enough, and only without one the pool
    grows by a new piece. (All recordings keep their addresses; only one of them runs at a time.)
    """
    raise NotImplementedError(
        "let each size take a free piece that is large enough, and add a piece only where there is none"
    )


@dataclass(frozen=True)
class Buffers:
    """The runner's persistent inputs; every step writes into the front of the same arrays. Given.

    Attributes:
        input_ids: [max tokens].
        positions: [max tokens].
        slot_mapping: [max tokens]; where each token's K and V go, -1 for nowhere.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    slot_mapping: np.ndarray


def fill_buffers(
    buffers: Buffers, input_ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], size: int
) -> Buffers:
    """Write one step's tokens into the persistent arrays and make the padding harmless.

    Positions of padded rows become 0, their slots -1; their input ids may be anything valid and stay as they are.

    Returns:
        The first `size` rows of each array, as views: the addresses that the recording knows.

    Raises:
        ValueError: more tokens than `size` ("... tokens do not fit ...").
    """
    raise NotImplementedError(
        "copy the tokens to the front of each array, and write 0 and -1 into the positions and slots behind them"
    )


def write_kv(cache: np.ndarray, slot_mapping: np.ndarray, values: np.ndarray) -> None:
    """What the kernel does: row i goes to slot i's place, rows with a negative slot go nowhere. Given."""
    real = slot_mapping >= 0
    cache[slot_mapping[real]] = values[real]


def logits_indices(num_scheduled_tokens: Sequence[int]) -> list[int]:
    """Rows to sample from: the last token of each request. Padded rows are behind them and never among them."""
    raise NotImplementedError("add the shares up; the last row of each request is one before the sum")
