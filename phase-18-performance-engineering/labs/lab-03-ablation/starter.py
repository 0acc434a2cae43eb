"""Lab 18-03: three techniques made the engine faster. Who gets the credit?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Arms = dict[tuple[int, ...], float]
"""Seconds (or another cost) of every combination; place i of the key is 1 where technique i is on."""


@dataclass(frozen=True)
class Technique:
    """A switch. Given. `on` and `off` are settings of the engine; techniques do not name the same setting twice."""

    name: str
    on: dict[str, Any] = field(default_factory=dict)
    off: dict[str, Any] = field(default_factory=dict)


def check_arms(arms: Arms, num_techniques: int) -> None:
    """Whether these are costs of all combinations.

    Raises:
        ValueError: "N of M arms are missing, first: KEY" (first in the order of `itertools.product((0, 1), …)`); "cost
            of arm KEY must be positive and finite, got V".
    """
    raise NotImplementedError("nothing, where all combinations have a cost; a ValueError where not")


def run_arms(
    run: Callable[[dict[str, Any]], tuple[float, Any]], techniques: Sequence[Technique], repeats: int = 3
) -> Arms:
    """Measure every combination of the techniques.

    Machines change from minute to minute: no arm runs twice in a row where there is another, and each repeat sees
    all of them once before the next begins. An arm's cost is the median of its repeats.

    Args:
        run: called with the settings of an arm, all techniques' together; returns its cost and its answer.
        techniques: at least one.
        repeats: how often each arm runs; at least 1.

    Raises:
        ValueError: "arm KEY gave another answer than arm KEY: an ablation compares equal work", at the first answer
            that differs from the first of all.
    """
    raise NotImplementedError("the median cost of every combination")


def one_at_a_time(arms: Arms, names: Sequence[str]) -> dict[str, float]:
    """By name: how many times cheaper this technique alone makes what has none of them. Raises as `check_arms`."""
    raise NotImplementedError("by name, the gain of each technique alone")


def leave_one_out(arms: Arms, names: Sequence[str]) -> dict[str, float]:
    """By name: how many times dearer what has them all becomes without this one. Raises as `check_arms`."""
    raise NotImplementedError("by name, the loss of leaving each technique out")


def along(arms: Arms, names: Sequence[str], order: Sequence[str]) -> dict[str, float]:
    """By name: how many times cheaper it became when this technique came, if they came in this order.

    Raises:
        ValueError: as `check_arms`; "order must name each of NAMES once, got ORDER", both as lists.
    """
    raise NotImplementedError("by name, the gain of each technique at its place in the order")


def interaction(arms: Arms, names: Sequence[str], x: str, y: str) -> float:
    """The gain of y where x is on, over the gain of y where x is off; all others are on. 1 says that they do not meet.

    Raises:
        ValueError: as `check_arms`; "x and y must be two of NAMES, got X and Y", NAMES as a list.
    """
    raise NotImplementedError("how much the gain of y changes by x, as a ratio")


def attribute(arms: Arms, names: Sequence[str]) -> dict[str, float]:
    """How many times cheaper each technique made it, as shares of what all of them did together.

    The rule is yours to decide. What must hold: the gains multiply to the cost of none over the cost of all. A
    technique that changes every cost by the same factor, whatever else is on, gets this factor; below 1 too, if it is
    a loss. Two techniques that could change places without changing a cost get equal gains. The order of the names
    changes nothing.

    Raises:
        ValueError: as `check_arms`.
    """
    raise NotImplementedError("by name, the share of each technique in the whole gain, as a factor")


def predicted_gain() -> float:
    """Your prediction, made before you open the capture. Twelve requests share 256 tokens of their prompts, and each
    asks for 24. Alone, prefix caching makes the bare engine 1.2 times as fast; bare is one request at a time and
    the slower attention. How many times as fast does it make the engine that batches and has the faster attention?
    """
    raise NotImplementedError("your prediction: what prefix caching is worth beside the two others")
