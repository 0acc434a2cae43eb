"""Right submissions in many styles: none is held, and each has every point."""

from __future__ import annotations

import pytest

from course.grade.faults import outside
from course.grade.grading import grade
from course.grade.intake import Submission
from course.grade.settings import Settings
from course.labs import Lab, all_labs, find_labs
from course.tests.honest import HANDS, STYLES, by_hand
from course.tests.test_grade import linux
from course.tests.test_language import FOR_A_HUMAN, language

pytestmark = pytest.mark.maintainer

LABS = [lab for lab in all_labs() if lab.number not in FOR_A_HUMAN]
NAMES = list(STYLES)


def styles_of(lab: Lab) -> list[str]:
    """Three of the styles, other ones from lab to lab."""
    return [NAMES[(3 * LABS.index(lab) + n) % len(NAMES)] for n in range(3)]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_no_honest_style_is_held(lab: Lab) -> None:
    for name in styles_of(lab):
        assert outside(STYLES[name](lab), language(lab)) == [], name


@pytest.mark.parametrize("name", HANDS)
def test_what_is_written_by_hand_is_not_held(name: str) -> None:
    (lab,) = find_labs(name[:5])
    assert outside(by_hand(lab, HANDS[name]), language(lab)) == []


def members() -> dict[str, tuple[Lab, str]]:
    """The solutions, each in three styles, and what is written by hand."""
    found = {f"solution {lab.name}": (lab, (lab.folder / "solution.py").read_text(encoding="utf-8")) for lab in LABS}
    found |= {f"{style} {lab.name}": (lab, STYLES[style](lab)) for lab in LABS for style in styles_of(lab)}
    return found | {name: (lab, by_hand(lab, text)) for name, text in HANDS.items() for lab in find_labs(name[:5])}


def test_there_are_two_hundred() -> None:
    assert len(members()) >= 200 and len(HANDS) >= 120


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("phase", sorted({lab.name[:2] for lab in LABS}))
def test_right_submissions_have_every_point(phase: str) -> None:
    here = [lab for lab in LABS if lab.name[:2] == phase and not lab.missing_modules]
    mine = {name: (lab, text) for name, (lab, text) in members().items() if lab in here}
    grades = grade([Submission(n, {lab.key: text.encode()}) for n, (lab, text) in mine.items()], here, Settings(), 2)
    rows = [row for row in grades.rows if mine[row.submission][0] == row.lab]
    wrong = {row.submission: (row.status, row.passed, len(row.tests), row.findings) for row in rows if row.share < 1}
    assert wrong == {} and len(rows) == sum(lab in grades.labs for lab, _ in mine.values())
