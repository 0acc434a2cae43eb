"""Scored self-checks: from a phase's ``quiz.toml`` to the ends of its guide's sections, on the website.

Without JavaScript a question is a list and a fold; ``docs/progress.js`` makes buttons of the answers and keeps the
score in this browser. A row has ``section`` (anchor of a heading of level 2), ``ask``, ``options`` (three or four),
``answer`` (index of the right one, from 0) and ``why``.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from site_map import ROOT, code, tomllib

from course.pages.markdown import parse, slug

NAME = "quiz.toml"


@dataclass(frozen=True)
class Question:
    """One row; ``number`` counts the questions of a section from 1."""

    section: str
    ask: str
    options: tuple[str, ...]
    answer: int
    why: str
    number: int = 1


def questions(path: Path) -> list[Question]:
    """The rows of a file in their order. Raises ValueError for an answer that is none of the options."""
    found: list[Question] = []
    for row in tomllib.loads(path.read_text(encoding="utf-8")).get("question", []):
        number = 1 + sum(one.section == row["section"] for one in found)
        question = Question(**row | {"options": tuple(row["options"]), "number": number})
        if not 0 <= question.answer < len(question.options):
            raise ValueError(f"{path}: {question.ask!r} has no option {question.answer}")
        found.append(question)
    return found


def html(question: Question, phase: str) -> str:
    """One question on one line."""
    options = "".join(f"<li>{code(option)}</li>" for option in question.options)
    name = f"{phase}/{question.section}/{question.number}"
    letter = "ABCD"[question.answer]
    fold = f'<summary class="quiz-fold">Answer</summary><p><b>{letter}.</b> {code(question.why)}</p>'
    return (
        f'<div class="quiz" data-quiz="{escape(name)}" data-answer="{question.answer}">'
        f'<p><b>For your score.</b> {code(question.ask)}</p><ol type="A">{options}</ol>'
        f'<details class="quiz-why">{fold}</details></div>'
    )


def placed(markdown: str, asked: list[Question], phase: str) -> str:
    """The page with each question at the end of its section. Raises ValueError for a section that is not there."""
    page, lines = parse(markdown), markdown.splitlines()
    heads = [(line, slug(text)) for line, level, text in page.headings() if level == 2]
    for at in range(len(heads) - 1, -1, -1):
        line, anchor = heads[at]
        mine = [html(one, phase) for one in asked if one.section == anchor]
        end = heads[at + 1][0] - 1 if at + 1 < len(heads) else len(lines)
        while end > line and lines[end - 1].strip() in ("", "---"):
            end -= 1
        lines[end:end] = [text for one in mine for text in ("", one)] + ([""] if mine else [])
    if lost := {one.section for one in asked} - {anchor for _, anchor in heads}:
        raise ValueError(f"phase {phase}: no section {', '.join(sorted(lost))}")
    return "\n".join(lines) + "\n"


def with_questions(markdown: str, source: str) -> str:
    """The guide of a phase with its questions; other pages as they are. source: ``phase-…/00-guide.md``."""
    path = ROOT / Path(source).parent / NAME
    if not source.endswith("/00-guide.md") or not path.is_file():
        return markdown
    return placed(markdown, questions(path), source[6:8])
