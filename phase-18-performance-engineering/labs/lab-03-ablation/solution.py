"""Lab 18-03: three techniques made the engine faster. Who gets the credit?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
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
    keys = list(itertools.product((0, 1), repeat=num_techniques))
    missing = [key for key in keys if key not in arms]
    if missing:
        raise ValueError(f"{len(missing)} of {len(keys)} arms are missing, first: {missing[0]}")
    for key in keys:
        if not (arms[key] > 0 and math.isfinite(arms[key])):
            raise ValueError(f"cost of arm {key} must be positive and finite, got {arms[key]}")


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
    keys = list(itertools.product((0, 1), repeat=len(techniques)))
    costs: dict[tuple[int, ...], list[float]] = {key: [] for key in keys}
    first: list[Any] = []
    for _ in range(repeats):
        for key in keys:
            settings: dict[str, Any] = {}
            for technique, bit in zip(techniques, key, strict=True):
                settings |= technique.on if bit else technique.off
            cost, answer = run(settings)
            first = first or [key, answer]
            if answer != first[1]:
                raise ValueError(f"arm {key} gave another answer than arm {first[0]}: an ablation compares equal work")
            costs[key].append(cost)
    return {key: median(each) for key, each in costs.items()}


def one_at_a_time(arms: Arms, names: Sequence[str]) -> dict[str, float]:
    """By name: how many times cheaper this technique alone makes what has none of them. Raises as `check_arms`."""
    check_arms(arms, len(names))
    none = (0,) * len(names)
    return {name: arms[none] / arms[_with(none, i, 1)] for i, name in enumerate(names)}


def leave_one_out(arms: Arms, names: Sequence[str]) -> dict[str, float]:
    """By name: how many times dearer what has them all becomes without this one. Raises as `check_arms`."""
    check_arms(arms, len(names))
    whole = (1,) * len(names)
    return {name: arms[_with(whole, i, 0)] / arms[whole] for i, name in enumerate(names)}


def along(arms: Arms, names: Sequence[str], order: Sequence[str]) -> dict[str, float]:
    """By name: how many times cheaper it became when this technique came, if they came in this order.

    Raises:
        ValueError: as `check_arms`; "order must name each of NAMES once, got ORDER", both as lists.
    """
    check_arms(arms, len(names))
    if sorted(order) != sorted(names):
        raise ValueError(f"order must name each of {list(names)} once, got {list(order)}")
    gains, key = {}, (0,) * len(names)
    for name in order:
        before, key = arms[key], _with(key, list(names).index(name), 1)
        gains[name] = before / arms[key]
    return gains


def interaction(arms: Arms, names: Sequence[str], x: str, y: str) -> float:
    """The gain of y where x is on, over the gain of y where x is off; all others are on. 1 says that they do not meet.

    Raises:
        ValueError: as `check_arms`; "x and y must be two of NAMES, got X and Y", NAMES as a list.
    """
    check_arms(arms, len(names))
    if x == y or x not in names or y not in names:
        raise ValueError(f"x and y must be two of {list(names)}, got {x} and {y}")
    whole, i, j = (1,) * len(names), list(names).index(x), list(names).index(y)
    gains = [arms[_with(_with(whole, i, bit), j, 0)] / arms[_with(whole, i, bit)] for bit in (1, 0)]
    return gains[0] / gains[1]


def attribute(arms: Arms, names: Sequence[str]) -> dict[str, float]:
    """How many times cheaper each technique made it, as shares of what all of them did together.

    The rule is yours to decide. What must hold: the gains multiply to the cost of none over the cost of all. A
    technique that changes every cost by the same factor, whatever else is on, gets this factor; below 1 too, if it is
    a loss. Two techniques that could change places without changing a cost get equal gains. The order of the names
    changes nothing.

    Raises:
        ValueError: as `check_arms`.
    """
    check_arms(arms, len(names))
    logs = dict.fromkeys(names, 0.0)
    for order in _orders(names):
        for name, gain in along(arms, names, order).items():
            logs[name] += math.log(gain)
    count = math.factorial(len(names))
    return {name: math.exp(value / count) for name, value in logs.items()}


def predicted_gain() -> float:
    """Your prediction, made before you open the capture. Twelve requests share 256 tokens of their prompts, and each
    asks for 24. Alone, prefix caching makes the bare engine 1.2 times as fast; bare is one request at a time and
    the slower attention. How many times as fast does it make the engine that batches and has the faster attention?
    """
    return 2.0


def _with(key: tuple[int, ...], i: int, bit: int) -> tuple[int, ...]:
    return (*key[:i], bit, *key[i + 1 :])


def _orders(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return itertools.permutations(names)
