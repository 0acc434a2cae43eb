"""The report of `course verify`: captures, mutation table, JSON; on a small course."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from course import labs, mutation, provenance, verify
from course.labs import LabError, lab_of
from course.mutation import Mutant, Score
from course.tests.conftest import FIRST, SECOND

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
        ({**ENTRY, "commands": {"a.json, c.log": "run"}}, "", "describes c.log, which is not there"),
    ],
)
def test_a_capture_without_its_story_is_named(entry: dict, file: str, message: str, captured: Path) -> None:
    (captured / "provenance.json").write_text(json.dumps({"cpu": entry}), encoding="utf-8")
    if file:
        (captured / file).write_text("2\n", encoding="utf-8")
    assert [p.text for p in provenance.check_folder(captured) if message in p.text]


def test_unreadable_provenance_is_named(captured: Path) -> None:
    for text, message in (("{", "unreadable"), ("[]", "no entry"), ("{}", "no entry")):
        (captured / "provenance.json").write_text(text, encoding="utf-8")
        assert message in provenance.check_folder(captured)[0].text


def score_of(folder: Path, jobs: int = 0) -> Score | str:
    if folder.name.startswith("lab-02"):
        raise LabError("the solution itself is failed: test_add")
    mutant = Mutant("Counter.add", 16, "by < 0 -> by <= 0", "")
    return Score("x", 20, 19, (mutant,), timeouts=2, argued=3, stale=("gone: 1 -> 2",), seconds=4.2)


def test_the_report_and_its_json(small_course: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mutation, "score", score_of)
    monkeypatch.setattr(verify, "checks", lambda folders, root: [verify.Check("rows", lambda: verify.check_rows(root))])
    console = Console(width=120, record=True, file=io.StringIO())
    chosen = [lab for lab in (lab_of(small_course / FIRST), lab_of(small_course / SECOND)) if lab]
    wrong = verify.run(chosen, True, console, small_course, tmp_path / "report.json")
    text = console.export_text()
    assert f"{FIRST}/solution.py:16: Counter.add: by < 0 -> by <= 0" in text
    assert "no mutant is called gone: 1 -> 2" in text and "95.0 %" in text and "the solution itself is failed" in text
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["wrong"] == wrong and report["checks"][0]["name"] == "rows"
    assert report["checks"][0]["problems"][0]["file"] == "course/labs.toml"
    first, second = report["mutation"]
    assert first["score"] == 0.95 and first["argued"] == 3 and first["survivors"][0]["line"] == 16
    assert "failed" in second["error"]


def test_an_argued_mutant_may_name_its_line(
    small_course: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "equivalent.toml"
    lab = lab_of(small_course / FIRST)
    assert lab is not None
    table.write_text(
        f'["{lab.key}"]\n"Counter.add: by < 0 -> by <= 0 @ if by" = "x"\n'
        '"Counter.add: by < 0 -> by >= 0 @ another line" = "y"\n',
        encoding="utf-8",
    )
    monkeypatch.setattr(mutation.equivalents, "__defaults__", (table,))
    score = mutation.score(small_course / FIRST)
    assert score.argued == 1 and score.stale == ("Counter.add: by < 0 -> by >= 0 @ another line",)
    assert not verify.passes(score) and verify.passes(Score("x", 10, 9, ()))
    assert not labs.SOURCES


def test_pictures_are_checked_by_their_scripts(tmp_path: Path) -> None:
    script = tmp_path / "phase-00-foundations" / "figures.py"
    script.parent.mkdir()
    script.write_text("import sys\nassert sys.argv[1] == '--check'\n", encoding="utf-8")
    assert verify.check_pictures(tmp_path) == []
    script.write_text("print('a.svg is not current')\nraise SystemExit(1)\n", encoding="utf-8")
    assert [p.text for p in verify.check_pictures(tmp_path)] == ["a.svg is not current"]
