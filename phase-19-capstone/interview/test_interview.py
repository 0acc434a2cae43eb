"""A sitting with injected time, input and output: what is drawn, when the answer is shown, what the record holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from course import cli
from course.labs import ROOT, SOURCES, LabError, load

HERE = Path(__file__).resolve().parent
sitting: Any = load(HERE / "sitting.py")
SESSIONS = sitting.sessions()


class Room:
    """A desk at which ``lines`` are typed and each line takes ``minutes`` of the clock."""

    def __init__(self, record: Path, lines: Iterator[str], minutes: float = 0.1) -> None:
        self.heard: list[str] = []
        self.now = 1000.0

        def ask(prompt: str) -> str:
            self.heard.append(f"? {prompt}")
            self.now += 60 * minutes
            return next(lines)

        self.desk = sitting.Desk(self.heard.append, ask, record, lambda: self.now, lambda: "2031-02-03")


def typed(*scores: str, marks: str = "ynn") -> Iterator[str]:
    """Enter, the three marks, and a score, for each question."""
    return iter([line for score in scores for line in ("", *marks, score)])


@pytest.fixture
def room(tmp_path: Path) -> Callable[..., Room]:
    return lambda *args, **how: Room(tmp_path / ".course" / "interview.jsonl", *args, **how)


def keys(session: int, seed: int = 0, seen: tuple[str, ...] = ()) -> list[str]:
    return [each.key for each in sitting.questions(SESSIONS[session - 1], ROOT, seed, seen)]


def test_four_sessions_of_165_minutes_ask_sixteen_questions() -> None:
    assert sum(each.minutes for each in SESSIONS) == 165
    assert [len(keys(number)) for number in (1, 2, 3, 4)] == [8, 5, 1, 2]
    assert [key[:2] for key in keys(1)] == ["00", "00", "01", "01", "02", "02", "03", "03"]
    assert [key[:2] for key in keys(2)] == ["04", "05", "06", "07", "08"]


def test_every_question_of_the_pages_counts_somewhere() -> None:
    rows = sitting.loop.read_rows((ROOT / "CAREER.md").read_text(encoding="utf-8"))
    placed = {phase for phases in rows.values() for phase in phases}
    for each in SESSIONS[2:]:
        page = (sitting.LAB / f"{each.page}.md").read_text(encoding="utf-8")
        assert len(sitting.loop.read_page(page, 0, each.page)) == len(each.phases) and set(each.phases) <= placed


def test_a_seed_draws_the_same_and_what_was_seen_waits() -> None:
    assert keys(1, 7) == keys(1, 7) and len({tuple(keys(1, seed)) for seed in range(8)}) == 8
    first = keys(1)
    assert not set(first) & set(keys(1, 0, tuple(first)))
    assert not set(keys(4)) & set(keys(4, 0, tuple(keys(4)))), "symptoms too"
    assert keys(3, 0, tuple(first)) == keys(3), "what one page has shown says nothing of another"


def test_phases_of_your_choice_give_a_question_each() -> None:
    own = sitting.by_phase("09, 11-13,17,11")
    asked = sitting.questions(own, ROOT, 0)
    assert [each.phase for each in asked] == [9, 11, 12, 13, 17] and own.minutes == 45
    assert sitting.by_phase("all").draws == tuple(range(20))
    seen = [each.key for each in asked]
    assert not set(seen) & {each.key for each in sitting.questions(own, ROOT, 0, seen)}
    for text, words in (
        ("x", "write for example"),
        ("3-", "write for example"),
        ("20", "from 00 to 19"),
        ("9-8", "from 00"),
        ("1-99999999999", "from 00 to 19"),
        ("²", "write for example"),
    ):
        with pytest.raises(LabError, match=words):
            sitting.by_phase(text)


def test_the_answer_is_shown_after_the_score(room: Callable[..., Room]) -> None:
    here, asked = room(typed("3", "1")), sitting.questions(SESSIONS[3], ROOT, 0)
    sitting.sit(SESSIONS[3], asked, 0, here.desk)
    heard = here.heard
    for each in asked:
        shown = next(at for at, text in enumerate(heard) if each.answer in text)
        question = next(at for at, text in enumerate(heard) if f"## {each.title}" in text)
        scores = [at for at, text in enumerate(heard) if text.startswith("? Your score") and at > question]
        assert question < scores[0] < shown
    assert [answer.score for answer in here.desk.made] == [3, 1]


@pytest.mark.parametrize(("marks", "counts"), [("ynn", 3), ("yyn", 2), ("yny", 2), ("yyy", 2), ("nnn", 0)])
def test_marks_cap_the_score(room: Callable[..., Room], marks: str, counts: int) -> None:
    here = room(typed("3", marks=marks))
    sitting.sit(SESSIONS[2], sitting.questions(SESSIONS[2], ROOT, 0), 0, here.desk)
    (made,) = here.desk.made
    assert (made.raw, made.score, made.seconds, made.when) == (3, counts, 30.0, "2031-02-03")
    assert any(f"Counts {counts}" in text for text in here.heard)


def test_what_is_no_mark_and_no_score_is_asked_again(room: Callable[..., Room]) -> None:
    here = room(iter(["", "maybe", "YES", "no", "n", "4", "", "2.5", "2"]))
    sitting.sit(SESSIONS[2], sitting.questions(SESSIONS[2], ROOT, 0), 0, here.desk)
    assert here.desk.made[0].score == 2
    assert here.heard.count("A score is 0, 1, 2 or 3.") == 3 and here.heard.count("Please answer y or n.") == 1


def test_a_session_ends_with_its_minutes(room: Callable[..., Room]) -> None:
    here = room(typed(*"33333333"), minutes=2.5)
    sitting.sit(SESSIONS[0], sitting.questions(SESSIONS[0], ROOT, 0), 0, here.desk)
    assert len(here.desk.made) == 3, "12.5 minutes each: the third begins in time"
    assert "Time is up. 5 not asked" in here.heard[-1]


@pytest.mark.maintainer
def test_the_record_grows_by_a_line_and_bears_damage(room: Callable[..., Room]) -> None:
    here = room(typed("3", "1"))
    sitting.sit(SESSIONS[3], sitting.questions(SESSIONS[3], ROOT, 0), 0, here.desk)
    file = here.desk.record
    assert [json.loads(line)["session"] for line in file.read_text(encoding="utf-8").splitlines()] == [4, 4]
    right = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    odd = ({"score": 7}, {"key": 5}, {"phase": [1]}, {"when": 5})
    wrong = ["half a l", '{"key": 1}', "[]", *(json.dumps(right | each) for each in odd)]
    file.write_text(file.read_text(encoding="utf-8") + "\n".join(wrong) + "\n", "utf-8")
    found, damaged = sitting.read_record(file)
    assert [answer.score for answer in found] == [3, 1] and damaged == len(wrong)
    assert sitting.questions(SESSIONS[3], ROOT, 0, ["x/²", "09/²", "²/1"]), "a key that is none names no question"
    assert sitting.read_record(file.with_name("none.jsonl")) == ([], 0)


def answer(key: str, phase: int, score: int, when: str = "2031-01-01") -> Any:
    return sitting.Answer(key, phase, "t", score, score, False, False, True, 1.0, 1, 0, when)


def test_the_verdict_takes_the_latest_answers_and_tells_weak_from_unknown() -> None:
    record = [answer("02/1", 2, 3), answer("02/1", 2, 0, "2031-02-01"), answer("03/1", 3, 3), answer("18/2", 18, 0)]
    found = sitting.verdict(record, ROOT)
    assert len(found.rows) == 10
    assert found.rows["Memory"] == (0.0, "2031-02-01") and found.rows["Throughput"] == (1.5, "2031-01-01")
    assert found.read == [2] and len(found.unknown) == 8 and "Hardware" in found.unknown


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of the verb in a folder of the test."""
    command = HERE / "command.py"
    text = command.read_text(encoding="utf-8")
    old = 'Path(".course") / "interview.jsonl"'
    assert text.count(old) == 1
    monkeypatch.setitem(SOURCES, command, text.replace(old, f"Path({str(tmp_path / 'interview.jsonl')!r})"))
    return tmp_path / "interview.jsonl"


def say(*args: str, lines: str = "", status: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["interview", *args], input=lines)
    if isinstance(result.exception, LabError):
        raise result.exception
    assert result.exit_code == status, result.output
    return " ".join(result.output.split())


def test_the_verb_sits_a_session_and_says_what_to_read(clone: Path) -> None:
    said = say("--session", "3", "--seed", "5", lines="\ny\nn\nn\n1\n")
    assert "Session 3: Design, 60 minutes" in said and "Counts 1." in said
    assert "Where you stand" in said and "Read again: phase-" in said and "Never asked, so not known:" in said
    assert len(clone.read_text(encoding="utf-8").splitlines()) == 1
    assert "Session" not in say("--matrix") and len(clone.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.maintainer
def test_a_sitting_that_is_broken_off_keeps_what_was_scored(clone: Path) -> None:
    said = say("--session", "4", "--seed", "1", lines="\ny\nn\nn\n3\n\ny\n")
    assert "Broken off." in said and len(clone.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.maintainer
def test_before_the_first_question_nothing_is_known(clone: Path) -> None:
    assert "Nothing was asked yet." in say("--matrix") and not clone.exists()
    say("--session", "5", status=2)
