"""Lab 19-02: a mock staff loop that draws, caps and answers with phases to read again."""

from __future__ import annotations

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
    raise NotImplementedError("the numbered questions of the page with their answers")


def read_bank(root: Path) -> Bank:
    """All questions of the course below `root`, by phase. Given. Raises as `read_page`."""
    bank: Bank = {}
    for page in sorted(root.glob("phase-[0-9][0-9]-*/INTERVIEW.md")):
        phase, where = int(page.parent.name[6:8]), f"{page.parent.name}/{page.name}"
        bank[phase] = read_page(page.read_text(encoding="utf-8"), phase, where)
    return bank


def without_a_number(bank: Bank) -> list[tuple[int, int]]:
    """(phase, number) of the answers in which no digit stands, in the order of phases and pages."""
    raise NotImplementedError("phase and number of each answer in which no digit stands")


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
    raise NotImplementedError("the questions of a sitting, by seed, fresh ones first")


def predicted_sittings() -> float:
    """Your prediction. A phase has ten questions, and a sitting takes two. With `seen`, all ten have come up after five
    sittings. Without it, how many sittings does it take until all ten have come up, on average?
    """
    raise NotImplementedError("your prediction: sittings, two questions each, until all ten have come up")


def cap_score(raw: int, *, peeked: bool = False, arithmetic_skipped: bool = False, spoken: bool = True) -> int:
    """What a score counts: 3 is cold and with its follow-ups, 2 hesitant, 1 heard of it, 0 blank.

    After a peek it is at most 2. Where a computation was there to be done and was not done, it is at most 2. An answer
    that was neither spoken nor written is 0.

    Raises:
        ValueError: "score must be 0, 1, 2 or 3, got RAW", whatever else is said; only whole numbers are scores.
    """
    raise NotImplementedError("what the score counts after a peek, a skipped computation, or silence")


def read_rows(career: str) -> Rows:
    """The competency map in the text of CAREER.md: the table of which the first column is called Competency, and the
    second holds phases, as in `03, 18` or `04–07` (an en dash or a hyphen; both ends belong to it).

    Raises:
        ValueError: "there is no table with a column Competency".
    """
    raise NotImplementedError("competency and phases, from the table of the map")


def matrix(scores: Iterable[tuple[int, int]], rows: Mapping[str, Sequence[int]]) -> dict[str, float | None]:
    """By row of the map, in its order: the mean of its scores; None for a row that nothing was asked of.

    Args:
        scores: (phase, score) of each answer, capped already. rows: competency -> phases, no phase in two.

    Raises:
        ValueError: "score must be 0, 1, 2 or 3, got S"; "phase NN stands in no row". The first bad pair is named, and
            of its two faults the score.
    """
    raise NotImplementedError("the mean score of each row, None where nothing was asked")


def revision(scores: Iterable[tuple[int, int]], rows: Mapping[str, Sequence[int]]) -> tuple[list[int], list[str]]:
    """What to read again, and what nobody knows yet.

    Returns:
        The phases of the rows whose mean is at most 1, the lowest mean first, equal ones in the order of the map; and
        the names of the rows that nothing was asked of, in the order of the map.

    Raises:
        ValueError: as `matrix`.
    """
    raise NotImplementedError("phases to read again, weakest row first, and rows that nobody asked about")
