"""Lab 11-02: what runs of real vLLM with many adapters show, and whom they put under suspicion.

An *answer* is a dict of `captured/`: request, question, adapter (None: the base), token_ids, margins (at each place, by
how much the likeliest token led the second, in nats), text. A *run* is a whole file: answers, slots, options, steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Answer = Mapping[str, Any]
Run = Mapping[str, Any]


def verdict(got: Answer, alone: Answer) -> str:
    """Whether an answer from a batch is the answer that the request gets alone.

    A sum of floats in another order may turn over a decision that hung by a hair; from there on the two texts have
    nothing to do with each other, and nobody is to blame. An adapter that is not the request's own turns over decisions
    that were none.

    Returns:
        "same", "tie" (explained by rounding in float32) or "different".
    """
    raise NotImplementedError("same, tie or different")


def blame(run: Run, alone: Run) -> dict[str, list[str | None]]:
    """For each request of a run whose answer is "different": the adapters (None: the base) whose own answer to the same
    question it is, as `verdict` judges, in the order of `alone`; an empty list where it is nobody's.
    """
    raise NotImplementedError("for each wrong answer, whose answer it is")


@dataclass
class Report:
    """most: different adapters in the fullest step. waited: request -> steps for which it was queued, of those that
    were at all. made_room: adapter that had to wait -> adapter whose last request ended just before its first one ran.
    loads: (step, slot, number of the adapter that has it from the next step on), whenever a slot changes hands."""

    most: int = 0
    waited: dict[str, int] = field(default_factory=dict)
    made_room: dict[str, str] = field(default_factory=dict)
    loads: list[tuple[int, int, int]] = field(default_factory=list)


def report(run: Run) -> Report:
    """What a run with `steps` shows. Requests in `steps` are called "4-b0f4f73d", those of the answers "4"."""
    raise NotImplementedError("who waited, for whom, and what was loaded")
