"""The scored self-checks: a question for each section that teaches, and all readable without JavaScript.

What their numbers must be is in `test_quiz_answers.py`.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from course.labs import ROOT

pytestmark = pytest.mark.maintainer

GUIDES = sorted(ROOT.glob("phase-[0-9][0-9]-*/00-guide.md"))
NO_LESSON = re.compile(r"Contents|(\d+\.\d+ )?(What to do now|What you do now|Now do it)")
"""Headings of sections that teach nothing: a list of contents, and the way to the labs."""


@pytest.fixture(scope="module")
def quiz() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("site_quiz")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.parent.name)
def test_every_guide_asks_in_its_sections(quiz: ModuleType, guide: Path) -> None:
    asked = quiz.questions(guide.parent / "quiz.toml")
    text = guide.read_text(encoding="utf-8")
    lessons = [quiz.slug(head) for head in re.findall(r"^## (.+)$", text, re.M) if not NO_LESSON.fullmatch(head)]
    assert len(lessons) >= 8 and [lesson for lesson in lessons if lesson not in {one.section for one in asked}] == []
    assert [one.section for one in asked] == sorted((one.section for one in asked), key=lessons.index), "in their order"
    assert len({one.ask for one in asked}) == len(asked)
    assert all(3 <= len(one.options) <= 4 and len(set(one.options)) == len(one.options) for one in asked)
    page = quiz.with_questions(text, f"{guide.parent.name}/00-guide.md")
    assert page.count('<div class="quiz"') == len(asked)
    for question in asked:
        after = page.index(quiz.html(question, guide.parent.name[6:8]))
        heads = [match for match in re.finditer(r"^## (.+)$", page[:after], re.M)]
        assert quiz.slug(heads[-1][1]) == question.section, "it stands at the end of its own section"
    assert re.sub(r"\n*<div class=\"quiz\".*\n*", "\n", page).split() == text.split()


def test_the_right_answer_is_not_always_at_the_same_place(quiz: ModuleType) -> None:
    asked = [one for guide in GUIDES for one in quiz.questions(guide.parent / "quiz.toml")]
    share = [sum(one.answer == at for one in asked) / len(asked) for at in range(3)]
    assert max(share) < 0.4 and min(share) > 0.25, share


def test_the_longest_option_is_no_hint(quiz: ModuleType) -> None:
    asked = [one for guide in GUIDES for one in quiz.questions(guide.parent / "quiz.toml")]
    alone = [one for one in asked if sorted(map(len, one.options))[-2] < len(max(one.options, key=len))]
    right = sum(one.options[one.answer] == max(one.options, key=len) for one in alone)
    assert right < 0.45 * len(alone), (right, len(alone))


def test_an_answer_or_a_section_that_is_not_there_is_an_error(quiz: ModuleType, tmp_path: Path) -> None:
    row = '[[question]]\nsection = "a"\nask = "?"\noptions = ["x", "y"]\nanswer = {}\nwhy = "z"\n'
    (tmp_path / "quiz.toml").write_text(row.format(2), encoding="utf-8")
    with pytest.raises(ValueError, match="no option 2"):
        quiz.questions(tmp_path / "quiz.toml")
    (tmp_path / "quiz.toml").write_text(row.format(1), encoding="utf-8")
    asked = quiz.questions(tmp_path / "quiz.toml")
    with pytest.raises(ValueError, match="no section a"):
        quiz.placed("# T\n\n## B\n", asked, "00")
    html = quiz.placed("# T\n\n## A\ntext\n\n---\n\n## B\n", asked, "00")
    assert html.index("text") < html.index("quiz") < html.index("---")
    assert "<b>B.</b> z" in html and "<details" in html


def test_other_pages_stay_as_they_are(quiz: ModuleType) -> None:
    assert quiz.with_questions("text", "GLOSSARY.md") == "text"
