"""Lab 19-02: a mock staff loop that draws, caps and answers with phases to read again."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Bank = dict[int, list["Question"]]
"""Questions by phase."""

Rows = dict[str, tuple[int, ...]]
"""Competency -> its phases, in the order of the table."""

SESSIONS: tuple[tuple[tuple[int, ...], int], ...] = (((0, 1, 2, 3), 2), ((4, 5, 6, 7, 8), 1))
"""Phases of a session, and how many questions it takes from each. Given: rapid fire, then the deep dive."""


@dataclass(frozen=True)
class Question:
    """One question of an INTERVIEW.md. Given. `title` as it stands behind the number, `answer` without its fold."""

    phase: int
    number: int
    title: str
    answer: str


def read_page(text: str, phase: int, where: str) -> list[Question]:
    """The numbered questions of one page, in its order.

    A question is a heading `## N. TITLE`, and reaches to the next heading of that level, numbered or not. Its answer
    stands in one `<details>`, behind the `</summary>`. What stands in a code fence is no heading.

    Args:
        text: a page in Markdown. phase: its number. where: its name, for the messages.

    Raises:
        ValueError: "WHERE: question N has no answer", also for an empty one; "WHERE: question N has C answers"; "WHERE:
            question N stands there twice". The first fault of the page is named.
    """
    found: list[Question] = []
    for title, body in _sections(text):
        if (head := re.fullmatch(r"(\d+)\. +(.+?)\s*", title)) is None:
            continue
        number = int(head[1])
        if any(each.number == number for each in found):
            raise ValueError(f"{where}: question {number} stands there twice")
        answers = re.findall(r"<details>\s*<summary>.*?</summary>(.*?)</details>", body, re.DOTALL)
        if len(answers) > 1:
            raise ValueError(f"{where}: question {number} has {len(answers)} answers")
        if not answers or not answers[0].strip():
            raise ValueError(f"{where}: question {number} has no answer")
        found.append(Question(phase, number, head[2], answers[0].strip()))
    return found


def _sections(text: str) -> list[tuple[str, str]]:
    """Headings of the second level, and what stands below each; those in a fence are text."""
    sections: list[tuple[str, list[str]]] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            sections.append((line[3:], []))
        elif sections:
            sections[-1][1].append(line)
    return [(title, "\n".join(lines)) for title, lines in sections]


def read_bank(root: Path) -> Bank:
    """All questions of the course below `root`, by phase. Given. Raises as `read_page`."""
    bank: Bank = {}
    for page in sorted(root.glob("phase-[0-9][0-9]-*/INTERVIEW.md")):
        phase, where = int(page.parent.name[6:8]), f"{page.parent.name}/{page.name}"
        bank[phase] = read_page(page.read_text(encoding="utf-8"), phase, where)
    return bank


def without_a_number(bank: Bank) -> list[tuple[int, int]]:
    """(phase, number) of the answers in which no digit stands, in the order of phases and pages."""
    return [(q.phase, q.number) for phase in sorted(bank) for q in bank[phase] if not re.search(r"\d", q.answer)]


def draw(
    bank: Bank,
    seed: int,
    sessions: Sequence[tuple[Sequence[int], int]] = SESSIONS,
    seen: Collection[tuple[int, int]] = (),
) -> list[tuple[int, int]]:
    """The questions of a sitting, as (phase, number): sessions, and phases within them, in their order.

    The same seed gives the same questions, on every day and in every process, and another seed most often others. No
    question comes twice. Questions in `seen` come only when their phase has no other left. Every question of a phase
    has the same chance. A question that is added to one phase changes nothing for the others, and the order in which
    the bank holds a phase's questions changes nothing at all. The bank stays as it is. How chance is tied to the bank
    is yours to decide.

    Raises:
        ValueError: "phase NN has H questions, the session needs N": fewer in the bank than all sessions together take
            from that phase; the first such phase in the order of the sessions.
    """
    needs: dict[int, int] = {}
    for phases, count in sessions:
        for phase in phases:
            needs[phase] = needs.get(phase, 0) + count
    turns: dict[int, list[int]] = {}
    for phase, need in needs.items():
        numbers = sorted(question.number for question in bank.get(phase, []))
        if len(numbers) < need:
            raise ValueError(f"phase {phase:02d} has {len(numbers)} questions, the session needs {need}")
        random.Random(f"{seed}:{phase}").shuffle(numbers)
        turns[phase] = sorted(numbers, key=lambda number: (phase, number) in seen)
    return [(phase, turns[phase].pop(0)) for phases, count in sessions for phase in phases for _ in range(count)]


def predicted_sittings() -> float:
    """Your prediction. A phase has ten questions, and a sitting takes two. With `seen`, all ten have come up after five
    sittings. Without it, how many sittings does it take until all ten have come up, on average?
    """
    return 14.0


def cap_score(raw: int, *, peeked: bool = False, arithmetic_skipped: bool = False, spoken: bool = True) -> int:
    """What a score counts: 3 is cold and with its follow-ups, 2 hesitant, 1 heard of it, 0 blank.

    After a peek it is at most 2. Where a computation was there to be done and was not done, it is at most 2. An answer
    that was neither spoken nor written is 0.

    Raises:
        ValueError: "score must be 0, 1, 2 or 3, got RAW", whatever else is said; only whole numbers are scores.
    """
    _check(raw)
    if not spoken:
        return 0
    return min(raw, 2) if peeked or arithmetic_skipped else raw


def _check(score: int) -> None:
    if type(score) is not int or not 0 <= score <= 3:
        raise ValueError(f"score must be 0, 1, 2 or 3, got {score}")


def read_rows(career: str) -> Rows:
    """The competency map in the text of CAREER.md: the table of which the first column is called Competency, and the
    second holds phases, as in `03, 18` or `04–07` (an en dash or a hyphen; both ends belong to it).

    Raises:
        ValueError: "there is no table with a column Competency".
    """
    lines = iter(career.splitlines())
    if not any(re.match(r"\|\s*Competency\s*\|", line) for line in lines):
        raise ValueError("there is no table with a column Competency")
    next(lines, None)
    rows: Rows = {}
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        rows[cells[0]] = tuple(phase for part in cells[1].split(",") for phase in _span(part))
    return rows


def _span(part: str) -> range:
    first, *last = (int(number) for number in re.findall(r"\d+", part))
    return range(first, (last[0] if last else first) + 1)


def matrix(scores: Iterable[tuple[int, int]], rows: Mapping[str, Sequence[int]]) -> dict[str, float | None]:
    """By row of the map, in its order: the mean of its scores; None for a row that nothing was asked of.

    Args:
        scores: (phase, score) of each answer, capped already. rows: competency -> phases, no phase in two.

    Raises:
        ValueError: "score must be 0, 1, 2 or 3, got S"; "phase NN stands in no row". The first bad pair is named, and
            of its two faults the score.
    """
    by_row: dict[str, list[int]] = {name: [] for name in rows}
    row_of = {phase: name for name, phases in rows.items() for phase in phases}
    for phase, score in scores:
        _check(score)
        if phase not in row_of:
            raise ValueError(f"phase {phase:02d} stands in no row")
        by_row[row_of[phase]].append(score)
    return {name: sum(each) / len(each) if each else None for name, each in by_row.items()}


def revision(scores: Iterable[tuple[int, int]], rows: Mapping[str, Sequence[int]]) -> tuple[list[int], list[str]]:
    """What to read again, and what nobody knows yet.

    Returns:
        The phases of the rows whose mean is at most 1, the lowest mean first, equal ones in the order of the map; and
        the names of the rows that nothing was asked of, in the order of the map.

    Raises:
        ValueError: as `matrix`.
    """
    means = matrix(scores, rows)
    weak = sorted((mean, at, name) for at, (name, mean) in enumerate(means.items()) if mean is not None and mean <= 1)
    return [phase for *_, name in weak for phase in rows[name]], [name for name, mean in means.items() if mean is None]
