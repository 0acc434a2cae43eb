"""The small language of lab code: what is held, with its line, and what is not."""

from __future__ import annotations

import functools
import importlib
import re

import pytest

from course.grade.faults import outside
from course.grade.language import Language
from course.grade.own import own_words
from course.labs import Lab, all_labs, find_labs
from course.tests.attacks import GIVEN, HELD, REVIEW
from course.tests.attacks_own import OWN
from course.tests.guarded import caught

pytestmark = pytest.mark.maintainer

REFERENCE = (
    '"""A lab."""\n\nfrom __future__ import annotations\n\nimport numpy as np\n\n\ndef f(x):\n    return np.sum(x)\n'
)
ATTACKS = {**REVIEW, **HELD, **OWN}


@functools.cache
def language(lab: Lab) -> Language:
    names = ("starter.py", "solution.py", "test_lab.py")
    starter, solution, test = ((lab.folder / name).read_text(encoding="utf-8") for name in names)
    own = own_words(starter, solution, test, "mini_vllm" in lab.allowed_imports)
    return Language(lab.allowed_imports, own)


FOR_A_HUMAN = {"14-01": "getattr with a name made while the file runs", "17-03": "swallows Exception"}
"""Labs that ask for what the language cannot bound (a stand-in that forwards names, a package that may raise what it
likes): their submissions are held."""


@pytest.mark.parametrize("lab", all_labs(), ids=lambda lab: lab.name)
def test_the_course_speaks_its_own_language(lab: Lab) -> None:
    for name in ("starter.py", "solution.py"):
        found = outside((lab.folder / name).read_text(encoding="utf-8"), language(lab))
        held = FOR_A_HUMAN.get(lab.number) if name == "solution.py" else None
        assert {text.partition(": ")[2] for text in found} == ({held} if held else set())


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_held_with_its_line_and_its_reason(name: str) -> None:
    body, reason = ATTACKS[name]
    top = REFERENCE.count("\n")
    found = caught(REFERENCE + body, Language(["numpy"]))
    assert any(reason in text for text in found), found
    first, last = top + 1, top + body.count("\n")
    assert all(first <= int(text.partition(":")[0]) <= last for text in found), found


@pytest.mark.parametrize("name", GIVEN)
def test_what_the_tests_take_from_the_starter_or_the_engine_stays_as_it_is(name: str) -> None:
    number, body, reason = GIVEN[name]
    (lab,) = find_labs(number)
    solution = (lab.folder / "solution.py").read_text(encoding="utf-8")
    if "triton" in lab.allowed_imports:  # a kernel runs from a file alone, and what runs here is none
        solution = "import torch\nimport triton\nimport triton.language as tl\n"
    found = caught(solution + body, language(lab))
    if not found and lab.missing_modules:
        pytest.skip(f"it shows when it runs, and {lab.missing_modules[0]} is not installed")
    if not found and name == "globals-of-a-kernel":
        kernel = importlib.import_module("triton.language").sum
        if not hasattr(kernel, reason):
            pytest.skip(f"Triton's interpreter was asked for first, and its functions have no {reason}")
    assert any(reason in text for text in found), found
    assert all(int(text.partition(":")[0]) > solution.count("\n") for text in found), found


IN_KERNELS = {
    "store": "o.name = 'other'",
    "store-by-name": "setattr(o, 'name', 'other')",
    "read": "x = o.gi_frame",
    "read-by-name": "x = getattr(o, 'gi_frame')",
    "read-in-a-default": "def inner(x=o.gi_frame):\n        pass",
}


@pytest.mark.parametrize("decorator", ["triton.jit", "triton.jit(debug=True)", "quick"])
@pytest.mark.parametrize("name", IN_KERNELS)
def test_a_kernel_asks_for_nothing_that_would_have_to_be_looked_at(name: str, decorator: str) -> None:
    top = "import triton\nfrom triton import jit as quick\nclass N:\n    name = gi_frame = None\n"
    found = outside(f"{top}@{decorator}\ndef put(o):\n    {IN_KERNELS[name]}\n", Language(["triton"]))
    assert any("in a kernel" in text for text in found), found


KEPT = """
from typing import Optional
from collections import defaultdict
Row = dict[str, Result]
def f(x: Optional[Result], y: "list[Result]" = ()) -> Result | None:
    match x:
        case Result(admitted=0):
            return Result(0, 0, 0)
    made = defaultdict(Result)
    print(f"{Result}", isinstance(x, (Result, int)), type(x) is Result, Result.__name__, list(map(Result, y, y, y)))
    return Result(0, 0, 0)
class Mine(Result):
    pass
"""


def test_what_a_starter_brings_along_may_be_used() -> None:
    (lab,) = find_labs("02-02")
    assert outside((lab.folder / "solution.py").read_text(encoding="utf-8") + KEPT, language(lab)) == []


FEW = ("00-03", "01-05")
SOME = [lab for name in (*FEW, "02-01", "02-04", "03-02", "05-06", "06-07", "07-05") for lab in find_labs(name)]


@pytest.mark.parametrize(
    "lab",
    [pytest.param(lab, marks=() if lab.name[:5] in FEW else pytest.mark.slow) for lab in SOME],
    ids=lambda lab: lab.name,
)
def test_what_a_lab_may_say_besides_opens_no_door(lab: Lab) -> None:
    """A lab's own files widen its language: behind its solution each attack is still held. A kernel of Triton runs from
    a file alone, and what runs here is none: there the attack stands by itself, and so it does beside PyTorch."""
    alone = {"triton", "torch"} & {*lab.allowed_imports}
    solution, missed = "" if alone else (lab.folder / "solution.py").read_text(encoding="utf-8"), []
    arrays, spoken = "numpy" in lab.allowed_imports, language(lab)
    if alone:  # what the starter brings along is not there either
        spoken = Language(lab.allowed_imports, spoken.own | {"given": {}})
    for name, (body, _) in ATTACKS.items():
        if not arrays and re.search(r"\bnp\b", body):
            continue
        text = solution + ("import numpy as np\n" if arrays else "")
        found = [int(one.partition(":")[0]) for one in caught(text + body, spoken)]
        missed += [name] if not any(line > text.count("\n") for line in found) else []
    assert missed == []
