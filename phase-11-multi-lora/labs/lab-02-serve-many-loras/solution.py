"""Lab 11-02: what runs of real vLLM with many adapters show, and whom they put under suspicion.

An *answer* is a dict of `captured/`: request, question, adapter (None: the base), token_ids, margins (at each place, by
how much the likeliest token led the second, in nats), text. A *run* is a whole file: answers, slots, options, steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Answer = Mapping[str, Any]
Run = Mapping[str, Any]
_TIE = 1e-3


def verdict(got: Answer, alone: Answer) -> str:
    """Whether an answer from a batch is the answer that the request gets alone.

    A sum of floats in another order may turn over a decision that hung by a hair; from there on the two texts have
    nothing to do with each other, and nobody is to blame. An adapter that is not the request's own turns over decisions
    that were none.

    Returns:
        "same", "tie" (explained by rounding in float32) or "different".
    """
    pairs = zip(got["token_ids"], alone["token_ids"], strict=True)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return "same"
    return "tie" if max(got["margins"][at], alone["margins"][at]) < _TIE else "different"


def blame(run: Run, alone: Run) -> dict[str, list[str | None]]:
    """For each request of a run whose answer is "different": the adapters (None: the base) whose own answer to the same
    question it is, as `verdict` judges, in the order of `alone`; an empty list where it is nobody's.
    """
    own = {(each["question"], each["adapter"]): each for each in alone["answers"]}
    found: dict[str, list[str | None]] = {}
    for got in run["answers"]:
        if verdict(got, own[got["question"], got["adapter"]]) == "different":
            others = [each for each in alone["answers"] if each["question"] == got["question"]]
            found[got["request"]] = [each["adapter"] for each in others if verdict(got, each) != "different"]
    return found


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
    adapter = {each["request"]: each["adapter"] for each in run["answers"]}
    found, before = Report(), set[str]()
    for number, step in enumerate(run["steps"]):
        running = [adapter[_short(each)] for each in step["running"]]
        now = set(running) - {None}
        found.most = max(found.most, len(now))
        for name in dict.fromkeys(running):
            late = any(adapter[each] == name for each in found.waited)
            if late and name is not None and name not in before and name not in found.made_room:
                found.made_room[name] = min(before - now)
        for each in step["waiting"]:
            found.waited[_short(each)] = found.waited.get(_short(each), 0) + 1
        before = now
        following: Sequence[Any] = run["steps"][number + 1 : number + 2]
        for later in following:
            pairs = enumerate(zip(step["slots_before"], later["slots_before"], strict=True))
            found.loads += [(number, slot, b) for slot, (a, b) in pairs if a != b]
    return found


def _short(name: str) -> str:
    return name.partition("-")[0]
