"""Trap tests: written by the server at run time, with names and numbers that nobody knew before, and sent to a fork
among the lab's own tests. Most must fail. A fork in which one does not end as it must has forged its results."""

import secrets
import string
from dataclasses import dataclass

from course.grade.language import WORDS

_DICE = secrets.SystemRandom()
MUST_FAIL, MUST_PASS = 3, 1
FORMS = {kind: text.strip().splitlines() for kind, text in WORDS["traps"].items()}


@dataclass(frozen=True)
class Trap:
    """One test function as text, and whether it must pass."""

    name: str
    text: str
    passes: bool


def make_trap(passes: bool, arrays: bool) -> Trap:
    """One of the forms above, with fresh numbers; ``arrays``: numpy is at hand."""
    form = _DICE.choice(FORMS["plain"] + (FORMS["arrays"] if arrays else []))
    a, other, c = _DICE.sample(range(10**6, 10**9), 3)
    name = "test_" + "".join(_DICE.choices(string.ascii_lowercase, k=12))
    top = "import json, math, pytest" + ("; import numpy as np; from course.fixtures import close" if arrays else "")
    return Trap(name, f"def {name}():\n    {top}\n    {form.format(a=a, b=a if passes else other, c=c)}\n", passes)


def plan(tests: range, arrays: bool) -> list[Trap | int | None]:
    """The steps of a fork: the lab's tests in order, traps at chance places, first and last too, then the end."""
    traps = [make_trap(n >= MUST_FAIL, arrays) for n in range(MUST_FAIL + MUST_PASS)]
    _DICE.shuffle(traps)
    steps: list[Trap | int | None] = list(tests)
    for trap in traps[2:]:
        steps.insert(_DICE.randrange(len(steps) + 1), trap)
    return [traps[0], *steps, traps[1], None]
