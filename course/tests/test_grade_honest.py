"""Right submissions in many styles: none is held, and each has every point."""

from __future__ import annotations

import pytest

from course.grade.faults import outside
from course.grade.grading import grade
from course.grade.intake import Submission
from course.grade.settings import Settings
from course.labs import Lab, all_labs, find_labs
from course.tests.honest import HANDS, STYLES, ways
from course.tests.styles import ARRAYS, MORE
from course.tests.test_grade import linux
from course.tests.test_language import FOR_A_HUMAN, language

pytestmark = pytest.mark.maintainer

LABS = [lab for lab in all_labs() if lab.number not in FOR_A_HUMAN]
NAMES = list(STYLES)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_no_honest_file_is_held(lab: Lab) -> None:
    """What is graded below, and the whole reference in one style, another one from lab to lab."""
    name, words = NAMES[LABS.index(lab) % len(NAMES)], language(lab)
    for written, text in [(name, STYLES[name](lab)), *((how, text) for text, how in ways(lab).values())]:
        assert outside(text, words) == [], written


def members(labs: list[Lab]) -> dict[str, tuple[Lab, str, list[str]]]:
    """File -> lab, text, the ways of writing that are in it."""
    return {name: (lab, *made) for lab in labs for name, made in ways(lab).items()}


def test_there_are_hundreds_of_ways() -> None:
    """All that is written by hand, and each style again and again."""
    found = [way for *_, mine in members(LABS).values() for way in mine]
    assert sorted(way for way in found if way in HANDS) == sorted(HANDS) and len(HANDS) >= 120
    of_style = {style: sum(way.startswith(f"{style} ") for way in found) for style in STYLES}
    assert min(of_style.values()) >= 15 and sum(of_style.values()) >= 200, of_style


def thirty_more(lab: Lab, every: int = 1) -> dict[str, str]:
    """The reference in each further style that fits the lab; ``every``: only each so many-th."""
    arrays = "import numpy as np" in (lab.folder / "solution.py").read_text(encoding="utf-8")
    start = LABS.index(lab) % every
    return {name: MORE[name](lab) for name in [n for n in MORE if arrays or n not in ARRAYS][start::every]}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_no_file_in_a_further_style_is_held(lab: Lab) -> None:
    """At least three hundred files over all labs."""
    held = {name: found for name, text in thirty_more(lab, 7).items() if (found := outside(text, language(lab)))}
    assert held == {}


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", ["00-02", "02-01", "02-06", "09-04"])
def test_further_styles_have_every_point(number: str) -> None:
    (lab,) = find_labs(number)
    files = [Submission(name, {lab.key: text.encode()}) for name, text in thirty_more(lab).items()]
    rows = grade(files, [lab], Settings(), 2).rows
    wrong = {row.submission: (row.status, row.findings, row.passed, len(row.tests)) for row in rows if row.share < 1}
    assert wrong == {} and len(rows) >= 28


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("phase", sorted({lab.name[:2] for lab in LABS}))
def test_right_submissions_have_every_point(phase: str) -> None:
    here = [lab for lab in LABS if lab.name[:2] == phase and not lab.missing_modules]
    mine = members(here)
    files = [Submission(name, {lab.key: text.encode()}) for name, (lab, text, _) in mine.items()]
    grades = grade(files, here, Settings(), 2)
    rows = [row for row in grades.rows if mine[row.submission][0] == row.lab]
    wrong = {
        row.submission: (row.status, row.findings, [t for t, (outcome, _) in row.tests.items() if outcome != "passed"])
        for row in rows
        if row.share < 1
    }
    assert wrong == {} and len(rows) == sum(lab in grades.labs for lab, *_ in mine.values())
