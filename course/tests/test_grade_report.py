"""Grading: settings, and the report in all its forms."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from course.cli import app
from course.grade import command, grading
from course.grade.grading import Grades, LabResult
from course.grade.intake import Submission
from course.grade.report import notes, render
from course.grade.settings import Limits, Settings, check_keys, read_settings
from course.labs import ROOT, LabError
from course.pages.markdown import read
from course.tests.conftest import FIRST, SOLUTION, STARTER
from course.tests.test_grade import FAST, LAB, OTHER, attack, linux, run

pytestmark = pytest.mark.maintainer


def test_settings(tmp_path: Path) -> None:
    path = tmp_path / "class.toml"
    path.write_text(
        'late_per_day = 0.1\n[weights]\n"00" = 2\n"00-01" = 3\n[deadlines]\n"00" = 2030-01-01T00:00:00Z\n'
        "[limits]\nmemory_mb = 512\n"
    )
    settings = read_settings(path)
    assert (settings.weight(LAB), settings.weight(OTHER), settings.limits.memory_mb) == (3, 2, 512)
    late = dt.datetime(2030, 1, 2, 1, tzinfo=dt.timezone.utc)
    assert settings.late_factor(LAB, late) == pytest.approx(0.8)
    assert settings.late_factor(LAB, None) == 1.0
    check_keys(settings, [LAB])
    with pytest.raises(LabError, match=r"\[weights\] has a row '00-77'"):
        check_keys(Settings(weights={"00-77": 1}), [LAB, OTHER])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weigths = 1", "unknown key weigths"),
        ("limits = 3", "limits is a table"),
        ("[limits]\ntest_seconds = 'a'", "limits.test_seconds is 'a'; it must be a number"),
        ("[limits]\nmemory_mb = inf", "limits.memory_mb is inf"),
        ("late_per_day = -1", "late_per_day is -1; it must be a number, at least 0"),
        ("allow = 'os'", "allow is 'os'; it must be a list"),
        ("accepted = [1]", "accepted is [1]; it must be a list of marks"),
        ("[deadlines]\n'02' = 3", "deadlines.02 must be a date and time"),
        ("a b", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "class.toml"
    path.write_text(text)
    with pytest.raises(LabError) as caught:
        read_settings(path)
    assert words in str(caught.value)


def test_the_limits_on_the_page_are_the_defaults(tmp_path: Path) -> None:
    (text,) = [fence.text for fence in read(ROOT / "docs" / "grading.md").fences if fence.info == "toml"]
    (tmp_path / "class.toml").write_text(text, encoding="utf-8")
    settings = read_settings(tmp_path / "class.toml")
    assert settings.limits == Limits() and (settings.accepted, settings.allow) == ((), ())
    assert set(settings.weights) == {"02", "02-05"} and settings.late_per_day == 0.1


def test_notes_are_one_line_each_and_bad_formats_are_named(tmp_path: Path) -> None:
    grades = Grades([LAB], [Submission("a", {}, ["holds nothing"])], [], Settings())
    assert notes(grades) == ["a: holds nothing"]
    command = [sys.executable, "-m", "course", "grade", str(tmp_path), "--format", "xml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "table, csv, json, junit" in done.stderr


def test_junit_is_what_readers_of_it_expect() -> None:
    """The parts of the usual schema: counted suites of named cases, at most one verdict each."""
    rows = [LabResult("a\x00<&\ud800", LAB, "graded", {"test_x": ("failed", "\x1b[1m]]>"), "test_y": ("passed", "")})]
    top = ElementTree.fromstring(
        render(Grades([LAB], [Submission("a\x00<&\ud800", {}, ["a link, left out"])], rows, Settings()), "junit")
    )
    (suite,) = top.findall("testsuite")
    cases = suite.findall("testcase")
    assert (top.tag, suite.get("tests"), suite.get("failures")) == ("testsuites", "2", "1")
    assert [(c.get("classname"), c.get("name"), [(v.tag, v.get("type")) for v in c]) for c in cases] == [
        (suite.get("name"), "test_x", [("failure", "failed")]),
        (suite.get("name"), "test_y", []),
    ]
    assert suite.findtext("system-out") == "a link, left out"


LABS = [replace(LAB, slug=f"lab-{n:02d}-y") for n in range(1, 20)]


def test_a_table_fits_the_terminal_and_no_lab_is_left_out() -> None:
    rows = [LabResult("anna", lab, "tampered", {"t": ("passed", "")}, ("line 1: " + "x " * 80,), 0.5) for lab in LABS]
    grades = Grades(LABS, [Submission("anna"), Submission("b" * 70)], rows, Settings(), missing=["no a", "no b"])
    text = render(grades, "table", 80)
    assert max(map(len, text.splitlines())) <= 80
    heads = [line for line in text.splitlines() if "submission" in line]
    assert len(heads) > 2 and ["points" in line for line in heads] == [False] * (len(heads) - 1) + [True]
    assert all(f"00-{n:02d}" in " ".join(heads) for n in range(1, 20)) and text.count("tampered ×0.5") == 19
    assert text.endswith("walls missing on this machine: no a; no b\n")
    assert len([line for line in render(grades, "table").splitlines() if "submission" in line]) == 1


def test_late_points_in_each_form() -> None:
    row = LabResult("a", LAB, "graded", {"x": ("passed", ""), "y": ("failed", "no")}, (), 0.8)
    grades = Grades([LAB], [Submission("a")], [row], Settings())
    assert next(csv.DictReader(io.StringIO(render(grades, "csv")))) == {
        "submission": "a", "points": "40.00", "00-01 points": "40.00", "00-01 status": "graded"
    }  # fmt: skip
    (shown,) = json.loads(render(grades, "json"))["submissions"]
    assert (shown["points"], shown["labs"][LAB.key]["points"], shown["labs"][LAB.key]["passed"]) == (40.0, 40.0, 1)
    assert "1/2 ×0.8" in render(grades, "table")


def test_what_is_held_is_no_zero_in_any_form() -> None:
    rows = [
        LabResult("a", LAB, "held", {"x": ("not run", "")}, ("starter.py:3: uses eval",)),
        LabResult("a", OTHER, "graded", {"x": ("passed", ""), "y": ("failed", "no")}),
    ]
    grades = Grades([LAB, OTHER], [Submission("a")], rows, Settings())
    assert grades.total("a") == 50.0
    row = next(csv.DictReader(io.StringIO(render(grades, "csv"))))
    assert (row["points"], row["00-01 points"], row["00-01 status"]) == ("50.00?", "", "held")
    (shown,) = json.loads(render(grades, "json"))["submissions"]
    assert (shown["points"], shown["held"], shown["labs"][LAB.key]["points"]) == (50.0, [LAB.key], None)
    assert "50.0?" in render(grades, "table") and "a, 00-01: held: starter.py:3: uses eval" in render(grades, "table")
    suite = ElementTree.fromstring(render(grades, "junit")).find("testsuite")
    assert suite is not None and (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert len(suite.findall(".//skipped")) == 1 and not suite.findall(".//failure")


@linux
def test_missing_walls_are_said_before_anything_runs_and_in_the_report(
    small_course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the kernel's walls the interpreter's own remain."""
    monkeypatch.setattr(grading, "walls", lambda: ([], ["no Landlock here", "no seccomp here"]))
    files = {name: attack(name, small_course) for name in ("exits-quietly", "reads-solution", "endless-loop")}
    grades = run(small_course, files | {"good": SOLUTION.encode(), "stub": STARTER.encode()}, FAST)
    assert {row.submission: row.share for row in grades.rows if row.share} == {"good": 1.0}
    assert notes(grades)[-1] == "walls missing on this machine: no Landlock here; no seccomp here"
    said: list[str] = []
    monkeypatch.setattr(command, "_say", said.append)

    def stop(*_: object, **__: object) -> None:
        raise LabError("; ".join(said))

    monkeypatch.setattr(grading, "grade", stop)
    done = CliRunner().invoke(app, ["grade", str(small_course), "--labs", "00"])
    assert str(done.exception) == notes(grades)[-1]


def test_where_the_report_cannot_be_written_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "class" / "a").mkdir(parents=True)
    done = CliRunner().invoke(app, ["grade", str(tmp_path / "class"), "-o", str(tmp_path / "no" / "x.csv")])
    assert isinstance(done.exception, LabError) and "not a file in a folder that is there" in str(done.exception)


@linux
def test_a_lab_whose_tests_are_all_skipped_is_named(small_course: Path) -> None:
    test = small_course / FIRST / "test_lab.py"
    test.write_text("import pytest\n\npytest.importorskip('no_such_module')\n" + test.read_text(encoding="utf-8"))
    with pytest.raises(LabError, match="no test of it runs here"):
        run(small_course, {"a": SOLUTION.encode()})
