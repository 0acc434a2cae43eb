"""The report of `course verify`: captures, mutation table, JSON; on a small course."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from course import verify
from course.contract import mutation
from course.contract.mutation import Mutant, Score
from course.labs import Lab, LabError, lab_of
from course.pages import provenance
from course.pages.markdown import Problem
from course.tests.conftest import FIRST, SECOND

pytestmark = pytest.mark.maintainer

ENTRY = {"machine": "a machine", "date": "2026-01-02", "versions": {"python": "3.11"}, "commands": {"a.json": "run a"}}


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    folder = tmp_path / "phase-00-foundations" / "captured"
    folder.mkdir(parents=True)
    for name in ("a.json", "a.log", "make.py"):
        (folder / name).write_text("1\n", encoding="utf-8")
    (folder / "provenance.json").write_text(json.dumps({"cpu": ENTRY}), encoding="utf-8")
    return folder


def test_captures_that_are_described_pass(captured: Path) -> None:
    assert provenance.check(captured.parents[1]) == []
    (captured / "provenance.json").write_text(json.dumps(ENTRY), encoding="utf-8")
    assert provenance.check_folder(captured) == []


@pytest.mark.parametrize(
    ("entry", "file", "message"),
    [
        ({**ENTRY, "machine": ""}, "", "says nothing under: machine (entry 'cpu')"),
        ({k: v for k, v in ENTRY.items() if k != "versions"}, "", "does not say: versions (entry 'cpu')"),
        ({**ENTRY, "date": "last week"}, "", "write YYYY-MM-DD"),
        (ENTRY, "b.json", "does not say where b.json comes from"),
        ({**ENTRY, "commands": {"a*.json": "run"}}, "ab.json", ""),
        (ENTRY, "runs/b.json", "does not say where runs/b.json comes from"),
        ({**ENTRY, "model": "as in ab.json"}, "b.json", "does not say where b.json comes from"),
        ({**ENTRY, "commands": {"a.json, c.log": "run"}}, "", "describes c.log, which is not there"),
    ],
)
def test_a_capture_without_its_story_is_named(entry: dict, file: str, message: str, captured: Path) -> None:
    (captured / "provenance.json").write_text(json.dumps({"cpu": entry}), encoding="utf-8")
    if file:
        (captured / file).parent.mkdir(exist_ok=True)
        (captured / file).write_text("2\n", encoding="utf-8")
    found = [p.text for p in provenance.check_folder(captured)]
    assert [text for text in found if message in text] if message else not found


def test_unreadable_provenance_is_named(captured: Path) -> None:
    (captured / "provenance.json").unlink()
    assert provenance.check_folder(captured)[0].text.startswith("missing: say machine, date, versions, command")
    for text, message in (("{", "unreadable"), ("[]", "no entry"), ("{}", "no entry")):
        (captured / "provenance.json").write_text(text, encoding="utf-8")
        assert message in provenance.check_folder(captured)[0].text


def score_of(folder: Path, jobs: int = 0) -> Score | str:
    if folder.name.startswith("lab-02"):
        raise LabError("the solution itself is failed: test_add")
    mutant = Mutant("Counter.add", 16, 11, "by < 0 -> by <= 0", "")
    return Score("x", 20, 19, (mutant,), timeouts=2, argued=3, seconds=4.2)


def test_the_report(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "score", score_of)
    monkeypatch.setattr(verify, "checks", lambda folders, root: [verify.Check("rows", lambda: verify.check_rows(root))])
    console = Console(width=120, record=True, file=io.StringIO())
    chosen = [lab for lab in (lab_of(small_course / FIRST), lab_of(small_course / SECOND)) if lab]
    wrong = verify.run(chosen, False, console, small_course)
    text = console.export_text()
    assert wrong == text.count("course/labs.toml:1: ") > 0 and "mutation" not in text
    assert verify.run(chosen, True, console, small_course) == 2, "a mutant survives in one lab, the other has no score"
    text = console.export_text()
    assert f"{FIRST}/solution.py:16:12: Counter.add: by < 0 -> by <= 0" in text and "rows" not in text
    assert "95.0 %" in text and "the solution itself is failed" in text


def test_labs_that_cannot_run_here_are_not_mutated(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "score", score_of)
    monkeypatch.setattr(
        Lab, "missing_modules", property(lambda lab: ["triton"] if lab.slug.startswith("lab-01") else [])
    )
    console = Console(width=120, record=True, file=io.StringIO())
    assert len(verify.mutate_all([small_course / FIRST, small_course / SECOND], console)) == 1
    assert "00-01 kv-cache-speedup: needs triton" in console.export_text()


def test_problems_stand_under_their_check_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(root: Path) -> list[Problem]:
        return [
            Problem(root / "b.md", 9, "later"),
            Problem(root / "b.md", 2, "earlier [x]"),
            Problem(root / "a.md", 3, "first"),
        ]

    made = [
        verify.Check("fine", lambda: []),
        verify.Check("not fine", lambda: two(tmp_path)),
        verify.Check("odd", broken),
    ]
    monkeypatch.setattr(verify, "checks", lambda folders, root: made)
    console = Console(width=120, record=True, file=io.StringIO())
    assert verify.run([], False, console, tmp_path) == 4
    lines = [line for line in console.export_text().splitlines() if line]
    assert [line.split()[0] for line in lines[:3]] == ["ok", "3", "1"]
    assert lines[3:7] == ["not fine", "  a.md:3: first", "  b.md:2: earlier [x]", "  b.md:9: later"]
    assert lines[7] == "odd" and "ValueError: no table" in lines[8]


def broken() -> list[Problem]:
    raise ValueError("no table")


def test_pictures_are_checked_by_their_scripts(tmp_path: Path) -> None:
    script = tmp_path / "phase-00-foundations" / "figures.py"
    script.parent.mkdir()
    script.write_text("import sys\nassert sys.argv[1] == '--check'\n", encoding="utf-8")
    assert verify.check_pictures(tmp_path) == []
    script.write_text("print('a.svg is not current')\nraise SystemExit(1)\n", encoding="utf-8")
    (found,) = verify.check_pictures(tmp_path)
    assert found.path == script and found.text.startswith("a.svg is not current; run it")
