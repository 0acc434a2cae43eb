"""Lab 02-02: two ways to hand out the same memory, and what each wastes.

One slot holds the K and V of one token. Requests arrive in order and none leaves, so that only placement matters.
Run as a script, this file prints the comparison of the README.

Your work: every function that raises NotImplementedError. What is marked (provided) stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Extent = tuple[int, int]


@dataclass(frozen=True)
class Result:
    """What became of the arrivals (provided). `wasted`: slots that are reserved and hold nothing."""

    admitted: int
    rejected: int
    wasted: int


def first_fit(total_slots: int, taken: Sequence[Extent], length: int) -> int | None:
    """Where a run of `length` free slots begins: the lowest start that fits, or None.

    Args:
        total_slots: slots 0 .. total_slots - 1 exist.
        taken: (start, length) of the runs in use, in any order, not overlapping; left as it is.
        length: slots wanted, at least 1.

    Returns:
        The start of the first gap that is long enough; None where none is, however many slots are free in all.
    """
    raise NotImplementedError("the lowest start of a gap that is long enough, or None")


def contiguous_admit(total_slots: int, max_len: int, used_lens: Sequence[int]) -> Result:
    """Reserve one run of `max_len` slots per request, first fit; a request that finds none is rejected.

    Args:
        total_slots: slots in all.
        max_len: longest possible request; what it will really use is not known when it arrives.
        used_lens: slots that each arrival ends up using, 1 .. max_len, in the order of arrival; left as it is.
    """
    raise NotImplementedError("who is admitted, who is not, and what the reservations of the admitted waste")


def paged_admit(total_slots: int, block_size: int, used_lens: Sequence[int]) -> Result:
    """Give each request the fewest blocks that hold its tokens, wherever they lie; too few left: rejected.

    A rejected request takes nothing, and the next one is asked as before. Slots beyond the last whole block cannot be
    used by anyone and are not counted as wasted. `used_lens` as in `contiguous_admit`.
    """
    raise NotImplementedError("who is admitted, who is not, and what the blocks of the admitted waste")


def sweep_block_sizes(
    total_slots: int, block_sizes: Sequence[int], used_lens: Sequence[int]
) -> dict[int, tuple[Result, int]]:
    """For each block size, in the order given: the result of `paged_admit`, and how many entries the block tables of
    the admitted have together. One entry names one block.
    """
    raise NotImplementedError("for each block size what became of the arrivals, and how many table entries they take")


def report() -> str:
    """The comparison of the README, as text (provided)."""
    used = [32] * 64
    lines = ["4096 slots, 64 arrivals of 32 tokens", f"contiguous, max 512   {contiguous_admit(4096, 512, used)}"]
    lines.append(f"paged, blocks of 16   {paged_admit(4096, 16, used)}")
    lines.append("64 arrivals of 33 tokens, by block size")
    for size, (result, entries) in sweep_block_sizes(4096, (1, 4, 16, 64, 256), [33] * 64).items():
        lines.append(f"{size:4d}  admitted {result.admitted:2d}  wasted {result.wasted:4d}  table entries {entries:4d}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
