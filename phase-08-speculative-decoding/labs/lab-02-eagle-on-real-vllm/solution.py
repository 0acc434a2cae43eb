"""Lab 08-02: what drafts bought in real vLLM, read from its counters and from timed steps.

A row is a dictionary, one line of a capture. All rows have `tokens`, and those of an arm with drafts what vLLM counts:
`drafts` (how often a request had any in a step), `draft_tokens`, `accepted`, and `accepted_per_pos`, a list: how often
the first draft was kept, the second, and so on. Rows of pocket have `steps` and `seconds`, one request at a time. Rows
of the large model have `arm`, `batch`, `accept`, `steps`, and `ms_per_step`: three timings of a third of the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Acceptance:
    """What became of drafts. Given.

    length: vLLM's "mean acceptance length", the tokens of a request in a step that had drafts, the model's own among
    them. rate: of the drafts, the share that was kept. by_position: how often all drafts up to this one were kept, of
    the times that there were drafts. conditional: how often this one was, of the times that those before it were; 0
    where they never were.
    """

    length: float
    rate: float
    by_position: tuple[float, ...]
    conditional: tuple[float, ...]


def acceptance(row: Mapping[str, Any]) -> Acceptance:
    """What vLLM's counters say about drafts.

    Raises:
        ValueError: "no drafts were judged".
    """
    if not row.get("drafts"):
        raise ValueError("no drafts were judged")
    reached = [row["drafts"], *row["accepted_per_pos"]]
    return Acceptance(
        1 + row["accepted"] / row["drafts"],
        row["accepted"] / row["draft_tokens"],
        tuple(kept / row["drafts"] for kept in reached[1:]),
        tuple(kept / before if before else 0.0 for before, kept in pairwise(reached)),
    )


def tokens_per_step(row: Mapping[str, Any]) -> float:
    """Tokens that a request got in a step, on average over all of its steps, those without drafts too.

    A row without `batch` has one request at a time.
    """
    return row["tokens"] / (row["steps"] * row.get("batch", 1))


def solve_alpha(length: float, k: int) -> float:
    """The probability with which each of k drafts would have to be kept, if those before it are, to give this mean
    acceptance length: one number that stands for a drafter on some traffic. To nine digits.

    Raises:
        ValueError: "no probability gives 5.0 tokens with 3 drafts": outside of [1, k + 1], or no drafts at all.
    """
    if k < 1 or not 1 <= length <= k + 1:
        raise ValueError(f"no probability gives {length} tokens with {k} drafts")
    low, high = 0.0, 1.0
    for _ in range(60):
        alpha = (low + high) / 2
        if sum(alpha**drafts for drafts in range(k + 1)) < length:
            low = alpha
        else:
            high = alpha
    return high


def step_ms(row: Mapping[str, Any]) -> float:
    """Milliseconds of a step: the middle one of its timings, so that none alone decides it, a slow or a fast one."""
    return median(row["ms_per_step"])


def break_even(plain: Mapping[str, Any], drafted: Mapping[str, Any]) -> float:
    """The mean acceptance length at which drafts neither win nor lose: from two rows of one batch, without drafts and
    with, however many of them were accepted.

    Raises:
        ValueError: "batch 8 beside batch 32".
    """
    if plain["batch"] != drafted["batch"]:
        raise ValueError(f"batch {plain['batch']} beside batch {drafted['batch']}")
    return step_ms(drafted) / step_ms(plain)


def predict(plain: Mapping[str, Any], drafted: Mapping[str, Any], length: float) -> float:
    """How many times as many tokens a second drafts give, at this mean acceptance length. Rows as in `break_even`."""
    return length / break_even(plain, drafted)


def choose(rows: Sequence[Mapping[str, Any]], lengths: Mapping[str, float]) -> dict[int, str]:
    """batch -> the arm to run: the one with most tokens a second.

    "none" where drafts gain nothing, or so little that one of the timings of these rows, beside one of the other arm's,
    would deny it; a draw denies it, too.

    Args:
        rows: for each batch one row of the arm "none", and any number of others. lengths: the mean acceptance length
            that each arm with drafts has on your traffic; arms that are not there are no choice.
    """
    chosen = {}
    for plain in rows:
        if plain["arm"] != "none":
            continue
        best, gain = "none", 1.0
        for row in rows:
            if row["batch"] != plain["batch"] or row["arm"] not in lengths:
                continue
            found = predict(plain, row, lengths[row["arm"]])
            sure = lengths[row["arm"]] * min(plain["ms_per_step"]) > max(row["ms_per_step"])
            if sure and found > gain:
                best, gain = row["arm"], found
        chosen[plain["batch"]] = best
    return chosen


def predicted_break_even() -> tuple[float, float]:
    """Your prediction, made before you open a capture. Llama-3.1-8B in 16 bits on an H100, three drafts from an EAGLE-3
    head. How many tokens must a step bring for each request, so that nothing is lost: with one request, with 256?
    """
    return 1.34, 2.6
