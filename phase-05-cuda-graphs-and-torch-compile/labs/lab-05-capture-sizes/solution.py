"""Lab 05-05: a ladder of sizes instead of a graph for every size, what the padding costs, and how to pad safely.

A size is a number of tokens in a step. It equals the number of requests only where each of them decodes one token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


def max_capture_size(max_num_seqs: int, max_num_batched_tokens: int, decode_query_len: int = 1) -> int:
    """The upper end of the default ladder: twice the tokens of a full decode step, at most 512, at most the budget.

    Args:
        decode_query_len: tokens of one decoding request in a step: 1, or 1 + drafts with speculation.
    """
    return min(max_num_seqs * decode_query_len * 2, 512, max_num_batched_tokens)


def default_capture_sizes(max_size: int) -> list[int]:
    """The ladder: 1, 2, 4, then every 8 below 256, then every 16; only what is not above `max_size`. Ascending."""
    ladder = [1, 2, 4, *range(8, 256, 8), *range(256, max_size + 1, 16)]
    return [size for size in ladder if size <= max_size]


def select_capture_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest size that holds the tokens; None above the largest one: that step has no graph.

    Args:
        sizes: ascending, not empty.
    """
    place = bisect_left(sizes, num_tokens)
    return sizes[place] if place < len(sizes) else None


def padded_tokens(num_tokens: int, sizes: Sequence[int]) -> int:
    """Rows of the launched size that carry nobody's token; 0 where no graph is used, for then nothing is padded."""
    size = select_capture_size(num_tokens, sizes)
    return 0 if size is None else size - num_tokens


def trace_waste(trace: Iterable[int], sizes: Sequence[int]) -> int:
    """Padded rows over all steps of a trace, given as the number of tokens in each step."""
    return sum(padded_tokens(num_tokens, sizes) for num_tokens in trace)


def waste_fraction(trace: Sequence[int], sizes: Sequence[int]) -> float:
    """Padded rows per REAL row over a trace, steps without a graph included; 0.0 for a trace without tokens."""
    real = sum(trace)
    return trace_waste(trace, sizes) / real if real else 0.0


def capture_order(sizes: Iterable[int]) -> list[int]:
    """The sizes, each as often as it is given, in the order of recording for which `pool_bytes` is least.

    Of several such orders any. The argument is read once and stays as it is.
    """
    return sorted(sizes, reverse=True)


def pool_bytes(order: Iterable[int], bytes_per_token: int) -> int:
    """Memory of a pool that all recordings share, one after the other, when they are made in this order.

    A recording of n tokens needs one piece of n * bytes_per_token. When it is made, earlier recordings have finished
    and their pieces are free: it takes the smallest free piece that is large enough, and only without one the pool
    grows by a new piece. (All recordings keep their addresses; only one of them runs at a time.)
    """
    pieces: list[int] = []
    for size in order:
        if all(piece < size for piece in pieces):
            pieces.append(size)
    return sum(pieces) * bytes_per_token


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

    Positions of padded rows become 0, their slots -1; their input ids may be any valid id, 0 or what was there. Rows
    from `size` on stay as they are.

    Returns:
        The first `size` rows of each array, as views: the addresses that the recording knows.

    Raises:
        ValueError: more tokens than `size` ("3 tokens do not fit into a graph of 2"); the arrays stay as they are.
    """
    n = len(input_ids)
    if n > size:
        raise ValueError(f"{n} tokens do not fit into a graph of {size}")
    buffers.input_ids[:n] = input_ids
    buffers.positions[:n] = positions
    buffers.positions[n:size] = 0
    buffers.slot_mapping[:n] = slots
    buffers.slot_mapping[n:size] = -1
    return Buffers(buffers.input_ids[:size], buffers.positions[:size], buffers.slot_mapping[:size])


def write_kv(cache: np.ndarray, slot_mapping: np.ndarray, values: np.ndarray) -> None:
    """What the kernel does: row i goes to slot i's place, rows with a negative slot go nowhere. Given."""
    real = slot_mapping >= 0
    cache[slot_mapping[real]] = values[real]


def logits_indices(num_scheduled_tokens: Sequence[int]) -> list[int]:
    """Rows to sample from, as ints: the row of each request's last token, in the order of the requests.

    The step's rows are the requests' tokens, one request after the other; padded rows are behind them.
    """
    indices, end = [], 0
    for share in num_scheduled_tokens:
        end += share
        indices.append(end - 1)
    return indices
