"""A sitting of ``course interview``: what is asked, what is written down, and what follows from it.

Reading the bank, drawing, capping and the verdict are the solution of lab 19-02. Time, input and output come from
outside, so that a test sits through 165 minutes in no time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course.labs import LabError, find_labs, load, tomllib

HERE = Path(__file__).parent
LAB = find_labs("19-02")[0].folder
MINUTES_EACH = 9
loop: Any = load(LAB / "solution.py")
RUBRIC = (
    "3: cold, and the follow-up too. 2: hesitant. 1: heard of it. 0: blank.\n"
    "A peek makes 2 the most, and so does a computation that was there and was not done. "
    "What you neither said nor wrote counts 0."
)


@dataclass(frozen=True)
class Session:
    """A row of ``sessions.toml``. ``page``: of lab 19-02, with ``count`` of its questions; "" for the INTERVIEW pages.
    ``phases``: where the page's questions count, by their number. ``draws``: phases that give one question each, in
    place of the lab's."""

    number: int
    title: str
    minutes: int
    how: str
    page: str = ""
    count: int = 0
    phases: tuple[int, ...] = ()
    draws: tuple[int, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A question that was drawn. ``phase`` is where its answer counts; ``key`` is its name in the record."""

    key: str
    phase: int
    title: str
    answer: str


@dataclass(frozen=True)
class Answer:
    """One line of the record. ``score`` is ``raw`` under the caps, ``seconds`` from the question to the score."""

    key: str
    phase: int
    title: str
    raw: int
    score: int
    peeked: bool
    arithmetic_skipped: bool
    spoken: bool
    seconds: float
    session: int
    seed: int
    when: str


def sessions() -> list[Session]:
    """The four, in their order."""
    rows = tomllib.loads((HERE / "sessions.toml").read_text(encoding="utf-8"))["session"]
    return [Session(number, **row | {"phases": tuple(row.get("phases", ()))}) for number, row in enumerate(rows, 1)]


def by_phase(text: str) -> Session:
    """A session of your own, one question from each of the phases in ``text``: "09,17", "11-13" or "all".

    Raises:
        LabError: for what names no phases.
    """
    parts = [part.strip().partition("-") for part in ("00-19" if text == "all" else text).split(",")]
    if not all(first.isdecimal() and (last.isdecimal() or not dash) for first, dash, last in parts):
        raise LabError(f"--phases {text!r}: write for example 09,17 or 11-13 or all")
    ends = [(int(first), int(last or first)) for first, _, last in parts]
    if any(not first <= last <= 19 for first, last in ends):
        raise LabError(f"--phases {text!r}: phases go from 00 to 19, and a span from the lower one to the higher")
    phases = tuple(dict.fromkeys(phase for first, last in ends for phase in range(first, last + 1)))
    return Session(
        5, "By phase", MINUTES_EACH * len(phases), "One question from each phase that you named.", draws=phases
    )


def questions(session: Session, root: Path, seed: int, seen: Iterable[str] = ()) -> list[Asked]:
    """What a session asks; the same seed and record, the same questions, whichever other session is sat.

    Raises:
        LabError: where a page cannot be read, or a phase has too few questions.
    """
    named = {parts for key in seen if (parts := _parts(key)) is not None}
    plan: Any = loop.SESSIONS
    try:
        if session.page:
            bank = {0: loop.read_page((LAB / f"{session.page}.md").read_text(encoding="utf-8"), 0, session.page)}
            plan = (((0,), session.count),)
            past = {(0, number) for page, number in named if page == session.page}
        else:
            bank, plan = loop.read_bank(root), ((session.draws, 1),) if session.draws else plan
            past = {(int(page), number) for page, number in named if page.isdecimal()}
        drawn = loop.draw(bank, seed, plan, past)
    except (OSError, ValueError) as error:
        raise LabError(str(error)) from None
    if not session.page and not session.draws:
        phases = loop.SESSIONS[session.number - 1][0]
        drawn = [each for each in drawn if each[0] in phases]
    by_number = {(phase, q.number): q for phase, found in bank.items() for q in found}
    return [_asked(session, by_number[each]) for each in drawn]


def _asked(session: Session, question: Any) -> Asked:
    name = session.page or f"{question.phase:02d}"
    phase = session.phases[question.number - 1] if session.page else question.phase
    return Asked(f"{name}/{question.number}", phase, question.title, question.answer)


def _parts(key: str) -> tuple[str, int] | None:
    page, _, number = key.partition("/")
    return (page, int(number)) if number.isdecimal() else None


@dataclass
class Desk:
    """The world of a sitting: what is printed, what is asked back, the clock in seconds, the date, the record's file.

    ``ask`` gets a prompt and returns a line; ``say`` gets text in Markdown. ``made``: what this sitting has written.
    """

    say: Callable[[str], None]
    ask: Callable[[str], str]
    record: Path
    clock: Callable[[], float] = time.monotonic
    today: Callable[[], str] = lambda: time.strftime("%Y-%m-%d")
    made: list[Answer] = field(default_factory=list)

    def yes(self, prompt: str) -> bool:
        """Asks until the line is y or n."""
        while (line := self.ask(f"{prompt} [y/n] ").strip().lower()) not in ("y", "yes", "n", "no"):
            self.say("Please answer y or n.")
        return line[0] == "y"

    def score(self) -> int:
        """Asks until the line is a score."""
        while (line := self.ask("Your score, before you see the answer [0-3] ").strip()) not in ("0", "1", "2", "3"):
            self.say("A score is 0, 1, 2 or 3.")
        return int(line)

    def write(self, answer: Answer) -> None:
        """Adds a line to the record. Raises :class:`LabError` where that cannot be done."""
        try:
            self.record.parent.mkdir(exist_ok=True)
            with self.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
        except OSError as error:
            raise LabError(f"the record cannot be written: {error}") from None
        self.made.append(answer)


def read_record(path: Path) -> tuple[list[Answer], int]:
    """The answers of all sittings, oldest first, and how many lines could not be read."""
    if not path.is_file():
        return [], 0
    found, lines = [], path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        try:
            answer = Answer(**json.loads(line))
            loop.cap_score(answer.score)
            if (type(answer.key), type(answer.phase), type(answer.when)) != (str, int, str):
                raise TypeError("key, phase and date must be a text, a number and a text")
            found.append(answer)
        except (TypeError, ValueError):
            continue
    return found, len(lines) - len(found)


def sit(session: Session, asked: list[Asked], seed: int, desk: Desk) -> None:
    """Sits one session: a question, the marks, the score, then the answer. Ends when its minutes are over."""
    desk.say(f"# Session {session.number}: {session.title}, {session.minutes} minutes\n\n{session.how}")
    begun = desk.clock()
    for number, each in enumerate(asked, 1):
        if (left := session.minutes * 60 - (desk.clock() - begun)) <= 0:
            desk.say(f"Time is up. {len(asked) - number + 1} not asked: they stay unknown, and do not count as 0.")
            break
        answer = _one(session, each, f"{number} of {len(asked)}, {left / 60:.0f} minutes left", seed, desk)
        desk.write(answer)
        desk.say(f"**Counts {answer.score}.** The answer:\n\n{each.answer}")


def _one(session: Session, each: Asked, where: str, seed: int, desk: Desk) -> Answer:
    begun = desk.clock()
    desk.say(f"## {each.title}\n\n{where}. Answer aloud or in writing.")
    desk.ask("Enter when you have answered ")
    spoken = desk.yes("Said aloud, or written?")
    peeked = desk.yes("Did you peek at notes or pages?")
    skipped = desk.yes("Was there something to compute that you did not compute?")
    raw = desk.score()
    score = loop.cap_score(raw, peeked=peeked, arithmetic_skipped=skipped, spoken=spoken)
    return Answer(
        key=each.key,
        phase=each.phase,
        title=each.title,
        raw=raw,
        score=score,
        peeked=peeked,
        arithmetic_skipped=skipped,
        spoken=spoken,
        seconds=round(desk.clock() - begun, 1),
        session=session.number,
        seed=seed,
        when=desk.today(),
    )


@dataclass(frozen=True)
class Verdict:
    """``rows``: competency -> (mean of the latest scores or None, latest date); ``read``: phases, weakest row first."""

    rows: dict[str, tuple[float | None, str]]
    read: list[int]
    unknown: list[str]


def verdict(record: list[Answer], root: Path) -> Verdict:
    """What all sittings say together: of a question that was asked twice, the later answer counts."""
    rows = loop.read_rows((root / "CAREER.md").read_text(encoding="utf-8"))
    placed = {phase for phases in rows.values() for phase in phases}
    latest = {answer.key: answer for answer in record if answer.phase in placed}
    scores = [(answer.phase, answer.score) for answer in latest.values()]
    read, unknown = loop.revision(scores, rows)
    dates = {name: max((a.when for a in latest.values() if a.phase in rows[name]), default="") for name in rows}
    means = loop.matrix(scores, rows)
    return Verdict({name: (means[name], dates[name]) for name in rows}, read, unknown)
