"""The scored self-checks: three or more a guide, in sections that exist, and readable without JavaScript."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from course.labs import ROOT

GUIDES = sorted(ROOT.glob("phase-[0-9][0-9]-*/00-guide.md"))


@pytest.fixture(scope="module")
def quiz() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("site_quiz")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.parent.name)
def test_every_guide_asks_in_its_sections(quiz: ModuleType, guide: Path) -> None:
    asked = quiz.questions(guide.parent / "quiz.toml")
    assert len(asked) >= 3 and len({one.ask for one in asked}) == len(asked)
    assert all(3 <= len(one.options) <= 4 and len(set(one.options)) == len(one.options) for one in asked)
    page = quiz.with_questions(guide.read_text(encoding="utf-8"), f"{guide.parent.name}/00-guide.md")
    assert page.count('<div class="quiz"') == len(asked)
    for question in asked:
        after = page.index(quiz.html(question, guide.parent.name[6:8]))
        heads = [match for match in re.finditer(r"^## (.+)$", page[:after], re.M)]
        assert quiz.slug(heads[-1][1]) == question.section, "it stands at the end of its own section"
    assert re.sub(r"\n*<div class=\"quiz\".*\n*", "\n", page).split() == guide.read_text(encoding="utf-8").split()


def test_the_right_answer_is_not_always_at_the_same_place(quiz: ModuleType) -> None:
    asked = [one for guide in GUIDES for one in quiz.questions(guide.parent / "quiz.toml")]
    share = [sum(one.answer == at for one in asked) / len(asked) for at in range(3)]
    assert max(share) < 0.6 and min(share) > 0.1, share


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
