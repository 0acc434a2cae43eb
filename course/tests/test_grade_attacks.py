"""Attacks through the whole grader: no point, or held; what twins and snapshots tell when the language is passed."""

from __future__ import annotations

import base64
import builtins
import marshal
import re
from pathlib import Path
from types import FunctionType, SimpleNamespace

import _pytest.assertion.rewrite
import pytest

from course.grade import proofs
from course.grade.grading import Grades, LabResult, grade
from course.grade.intake import Submission, mark
from course.grade.settings import Limits, Settings
from course.labs import Lab, find_labs
from course.tests import submissions as made
from course.tests.attacks import HELD, INSIDE, LET_RUN, REVIEW
from course.tests.conftest import SOLUTION, STARTER
from course.tests.test_grade import FAST, linux, run

pytestmark = pytest.mark.maintainer


def rows_of(grades: Grades) -> dict[str, LabResult]:
    return {row.submission: row for row in grades.rows}


@linux
def test_what_a_human_lets_run_by_mistake_is_told_by_twins_and_snapshots(small_course: Path) -> None:
    """The starter, which has no point, with the attack on top: none is had, and none is silent."""
    files = {name: STARTER.replace(made.TOP, made.TOP + body, 1).encode() for name, body in LET_RUN.items()}
    settings = Settings(limits=FAST.limits, accepted=tuple(map(mark, files.values())), allow=("numpy",))
    rows = rows_of(run(small_course, files, settings))
    assert {name: row.passed for name, row in rows.items() if row.share} == {}
    silent = {name for name, row in rows.items() if row.status == "graded" and not row.findings}
    assert silent == set(), {name: (row.tests, row.findings) for name, row in rows.items() if name in silent}


@linux
def test_what_the_language_lets_through_is_told_when_it_runs() -> None:
    (lab,) = find_labs("00-02")
    solution = (lab.folder / "solution.py").read_text(encoding="utf-8")
    learners = [Submission(name, {lab.key: (solution + body).encode()}) for name, body in INSIDE.items()]
    rows = grade(learners, [lab], Settings(limits=Limits(stops=1)), 1).rows
    told = [row for row in rows if row.status == "held" and "which is not its own" in row.findings[0]]
    heard = ("replaced ", "asked for ", "silence for ")
    told += [row for row in rows if row.status == "tampered" and row.findings[0].startswith(heard)]
    assert [(row.submission, row.status) for row in rows if row not in told] == [] and len(rows) == len(INSIDE)


QUIET = """
import sys
for finder in sys.meta_path:
    if config := getattr(finder, "config", None):
        for plugin in config.pluginmanager.get_plugins():
            for item in [*(getattr(plugin, "items", None) or ()), *(getattr(plugin, "session", plugin), "items", ())]:
                if hasattr(item, "obj"):
                    item.obj = lambda *args, **more: None
"""


@linux
def test_no_way_leads_to_the_tests_of_the_lab(small_course: Path) -> None:
    files = {"quiet": (STARTER + QUIET).encode()}
    rows = rows_of(run(small_course, files, Settings(limits=FAST.limits, accepted=tuple(map(mark, files.values())))))
    assert rows["quiet"].share == 0


def test_who_does_not_come_to_the_end_of_a_test_has_not_passed_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "test_lab.py"
    path.write_text("def test_a(x=3):\n    if x > 9:\n        return\n    assert x == 3\n")
    space: dict[str, object] = {"__name__": "test_lab"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    item = SimpleNamespace(path=path, function=space["test_a"], cls=None)
    codes = proofs.endings([item], request.config)
    ended = []
    for step in (0, proofs.Twin(0), 0):
        line, proof = proofs.told(step, ["test_a"], codes)
        code = marshal.loads(base64.b64decode(line["code"]))
        module = {"@pytest_ar": _pytest.assertion.rewrite, "@py_builtins": builtins}
        for x in (3, 4, 10):
            try:
                ended.append(FunctionType(code, module, "test_a")(x) == proof)
            except AssertionError:
                ended.append(False)
    assert ended == [True, False, True, False, False, False, True, False, True]


def test_nobody_makes_two_files_with_one_mark() -> None:
    """That costs about 2 to the power of half its bits."""
    assert len(mark(b"")) * 4 // 2 >= 80


@linux
def test_a_held_file_is_not_graded_and_has_no_zero_and_an_accepted_one_is_graded(small_course: Path) -> None:
    text = (SOLUTION + "_same = lambda: vars()\n").encode()
    first = run(small_course, {"held": text, "good": SOLUTION.encode()})
    (row,) = [row for row in first.rows if row.submission == "held"]
    assert row.status == "held" and row.findings[0].startswith(f"starter.py:{SOLUTION.count(chr(10)) + 1}: uses vars")
    given = re.findall(r"accepted = \['(\w+)'\]", row.findings[-1])
    assert given == [mark(text)]
    again = run(small_course, {"held": text}, Settings(limits=FAST.limits, accepted=tuple(given)))
    assert [(r.status, r.share) for r in again.rows] == [("graded", 1.0)]


@linux
@pytest.mark.slow
@pytest.mark.parametrize("lab", find_labs("00-03") + find_labs("01-05"), ids=lambda lab: lab.name)
def test_no_attack_has_a_point_in_a_lab_of_the_course(lab: Lab) -> None:
    reference = (lab.folder / "solution.py").read_text(encoding="utf-8")
    files = {name: f"{reference}import numpy as np\n{body}" for name, (body, _) in {**REVIEW, **HELD}.items()}
    learners = [Submission(name, {lab.key: text.encode()}) for name, text in files.items()]
    rows = rows_of(grade(learners, [lab], Settings(limits=Limits(stops=1)), 2))
    assert {name for name in files if rows[name].share} == set()
    mistakes = {"globals-of-cython"}  # in a fork that generator is a function, which has no such attribute
    assert {name for name in files if rows[name].status != "held"} <= mistakes
