"""Lab 08-02: what drafts bought in real vLLM, read from its counters and from timed steps.

A row is a dictionary, one line of a capture. All rows have `tokens`, and those of an arm with drafts what vLLM counts:
`drafts` (how often a request had any in a step), `draft_tokens`, `accepted`, and `accepted_per_pos`, a list: how often
the first draft was kept, the second, and so on. Rows of pocket have `steps` and `seconds`, one request at a time. Rows
of the large model have `arm`, `batch`, `accept`, `steps`, and `ms_per_step`: three timings of a third of the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    raise NotImplementedError("what the counters say: mean length, rate, and two rates by position")


def tokens_per_step(row: Mapping[str, Any]) -> float:
    """Tokens that a request got in a step, on average over all of its steps, those without drafts too.

    A row without `batch` has one request at a time.
    """
    raise NotImplementedError("tokens that a request got in a step, over all its steps")


def solve_alpha(length: float, k: int) -> float:
    """The probability with which each of k drafts would have to be kept, if those before it are, to give this mean
    acceptance length: one number that stands for a drafter on some traffic. To nine digits.

    Raises:
        ValueError: "no probability gives 5.0 tokens with 3 drafts": outside of [1, k + 1], or no drafts at all.
    """
    raise NotImplementedError("the one probability that gives this mean acceptance length")


def step_ms(row: Mapping[str, Any]) -> float:
    """Milliseconds of a step: the middle one of its timings, so that none alone decides it, a slow or a fast one."""
    raise NotImplementedError("milliseconds of a step, undisturbed")


def break_even(plain: Mapping[str, Any], drafted: Mapping[str, Any]) -> float:
    """The mean acceptance length at which drafts neither win nor lose: from two rows of one batch, without drafts and
    with, however many of them were accepted.

    Raises:
        ValueError: "batch 8 beside batch 32".
    """
    raise NotImplementedError("the mean acceptance length at which drafts neither win nor lose")


def predict(plain: Mapping[str, Any], drafted: Mapping[str, Any], length: float) -> float:
    """How many times as many tokens a second drafts give, at this mean acceptance length. Rows as in `break_even`."""
    raise NotImplementedError("how many times as many tokens a second, at this mean acceptance length")


def choose(rows: Sequence[Mapping[str, Any]], lengths: Mapping[str, float]) -> dict[int, str]:
    """batch -> the arm to run: the one with most tokens a second.

    "none" where drafts gain nothing, or so little that one of the timings of these rows, beside one of the other arm's,
    would deny it; a draw denies it, too.

    Args:
        rows: for each batch one row of the arm "none", and any number of others. lengths: the mean acceptance length
            that each arm with drafts has on your traffic; arms that are not there are no choice.
    """
    raise NotImplementedError("for each batch, the arm to run")


def predicted_break_even() -> tuple[float, float]:
    """Your prediction, made before you open a capture. Llama-3.1-8B in 16 bits on an H100, three drafts from an EAGLE-3
    head. How many tokens must a step bring for each request, so that nothing is lost: with one request, with 256?
    """
    raise NotImplementedError("your prediction: tokens a step must bring, with one request and with 256")
