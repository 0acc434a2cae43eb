"""Which batch sizes get a graph: a ladder, and every batch pads up to the next rung.

Sizes are tokens of a step; they equal requests only where each request has one token.
Upstream twin: `vllm/config/vllm.py` (`_set_cudagraph_sizes`).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence


def default_capture_sizes(max_size: int) -> list[int]:
    """1, 2, 4, then every 8th below 256, then every 16th, up to `max_size`: 51 sizes for 512.

    Upstream: upstream/vllm/config/vllm.py:1597 — `VllmConfig._set_cudagraph_sizes`.
    """
    sizes = [1, 2, 4, *range(8, min(max_size + 1, 256), 8), *range(256, max_size + 1, 16)]
    return [size for size in sizes if size <= max_size]


def resolve_capture_sizes(
    sizes: Sequence[int] | None,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_size: int | None = None,
    uniform_decode_query_len: int = 1,
) -> list[int]:
    """The sizes to capture, ascending and without repeats.

    Args:
        sizes: the user's own; those above the token budget are dropped. None: the default ladder up to
            min(2 * max_num_seqs * uniform_decode_query_len, 512, budget), with the budget itself as the last rung
            where it is no larger than that.
        max_size: the top of the ladder, where the user sets it (upstream: `max_cudagraph_capture_size`).

    Raises:
        ValueError: a size is not a positive whole number, or `sizes` and `max_size` contradict each other.

    Upstream: upstream/vllm/config/vllm.py:1597 — `VllmConfig._set_cudagraph_sizes`.
    """
    if sizes is not None:
        wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 1]
        if wrong or not len(sizes):
            raise ValueError(f"cudagraph_capture_sizes must hold whole numbers of at least 1, got {list(sizes)}")
        chosen = sorted({size for size in sizes if size <= max_num_batched_tokens})
        if max_size is not None and max_size != (chosen or [0])[-1]:
            raise ValueError(
                f"max_cudagraph_capture_size={max_size} contradicts cudagraph_capture_sizes, whose largest within the "
                f"token budget is {(chosen or [0])[-1]}"
            )
        return chosen
    if max_size is None:
        max_size = min(max_num_seqs * uniform_decode_query_len * 2, 512)
    max_size = min(max_size, max_num_batched_tokens)
    ladder = set(default_capture_sizes(max_size))
    if max_num_batched_tokens <= max_size:
        ladder.add(max_num_batched_tokens)
    return sorted(ladder)


def pad_to_capture_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest size that holds the batch; None above the largest: no graph. `sizes` ascend."""
    at = bisect.bisect_left(sizes, num_tokens)
    return sizes[at] if at < len(sizes) else None
