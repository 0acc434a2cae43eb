"""Grading: intake of anything, the screen, the sandbox against each attack, marks, reports, look-alikes."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course.grade.grading import Grades, grade
from course.grade.intake import Submission, lab_of_entry, take_in
from course.grade.report import FORMATS, notes, render
from course.grade.screen import screen
from course.grade.settings import Limits, Settings, read_settings
from course.grade.similarity import similar
from course.labs import LabError, find_labs, lab_of
from course.tests import submissions as made
from course.tests.conftest import FIRST, SECOND, SOLUTION, STARTER

LAB, OTHER = lab_of(FIRST), lab_of(SECOND)
assert LAB is not None and OTHER is not None
linux = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
FAST = Settings(limits=Limits(test_seconds=0.5, lab_seconds=4, memory_mb=256, stops=1))


def attack(name: str, root: Path) -> bytes:
    body = made.BODIES[name].replace("SOLUTION", repr(str(root / FIRST / "solution.py")))
    return SOLUTION.replace(made.TOP, made.TOP + body, 1).encode()


def run(root: Path, files: dict[str, bytes], settings: Settings = FAST) -> Grades:
    learners = [Submission(name, {LAB.key: text}) for name, text in files.items()]
    return grade(learners, [LAB], settings, 2, [root], root)


@linux
@pytest.mark.timeout(120)
def test_every_attack_is_reported_and_harms_nobody(small_course: Path) -> None:
    files = {name: attack(name, small_course) for name in made.BODIES}
    files |= {"junk": random.Random(1).randbytes(999), "good": SOLUTION.encode(), "untouched": STARTER.encode()}
    grades = run(small_course, files)
    rows = {row.submission: row for row in grades.rows}
    assert rows["good"].status == "graded" and rows["good"].share == 1.0
    assert rows["untouched"].status == "graded" and rows["untouched"].share == 0.0
    for name in [*made.BODIES, "junk"]:
        assert rows[name].share == 0.0, name
        assert rows[name].status != "graded" or rows[name].findings or rows[name].passed == 0, name
    assert {rows[n].status for n in ("exits", "imports-pytest", "imports-engine", "asks-for-solution")} == {"refused"}
    assert rows["junk"].status == "broken"
    text = render(grades, "table")
    assert "endless-loop" in text and "more than 0.5 s" in text


@linux
@pytest.mark.timeout(60)
def test_what_the_screen_misses_the_sandbox_stops(small_course: Path) -> None:
    names = ("exits-quietly", "fork-bomb", "patches-pytest", "reads-solution", "forges-results", "kills-parent")
    settings = Settings(limits=FAST.limits, screen="report")
    rows = {r.submission: r for r in run(small_course, {n: attack(n, small_course) for n in names}, settings).rows}
    assert all(row.share == 0 for row in rows.values()), {n: (r.status, r.passed) for n, r in rows.items()}
    assert rows["patches-pytest"].status == "tampered"
    assert rows["forges-results"].status == "tampered"
    assert rows["reads-solution"].status == "tampered"


@linux
def test_partial_credit_and_the_same_bytes_twice(small_course: Path) -> None:
    half = STARTER.replace('raise NotImplementedError("Return twice x.")', "return 2 * x").encode()
    late = SOLUTION.replace("return 2 * x", "while True:\n        pass").encode()
    first = run(small_course, {"half": half, "late": late})
    row, slow = first.rows
    assert {test: outcome for test, (outcome, _) in row.tests.items()} == {
        "test_add": "unwritten",
        "test_negative": "unwritten",
        "test_runtime_error_does_not_hide_a_stub": "passed",
    }
    assert slow.passed == 2  # the endless function costs its own test alone
    again = run(small_course, {"half": half, "late": late})
    for form in FORMATS:
        assert render(first, form) == render(again, form)
    assert json.loads(render(first, "json"))["submissions"][0]["points"] == 33.33
    assert next(csv.DictReader(io.StringIO(render(first, "csv"))))["points"] == "33.33"
    assert len(ElementTree.fromstring(render(first, "junit")).findall(".//failure")) == 3


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import math, numpy as np\nfrom dataclasses import dataclass\n", ""),
        ("import torch", "imports torch"),
        ("from . import solution", "imports ."),
        ("import os.path as p", "imports os.path"),
        ("f.__globals__", "the attribute __globals__"),
        ("getattr(f, '__globals__')", "names '__globals__' in a string"),
        ("eval('1')", "uses eval"),
    ],
)
def test_screen(code: str, found: str) -> None:
    assert (found in "; ".join(screen(code, ["numpy"]))) if found else screen(code, ["numpy"]) == []
    assert screen("import os", [], ["os"]) == []


def test_the_course_passes_its_own_screen() -> None:
    for lab in find_labs("02"):
        for name in ("starter.py", "solution.py"):
            assert screen((lab.folder / name).read_text(encoding="utf-8"), lab.allowed_imports) == []


def test_intake(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    names = set(made.odd(tmp_path / "class", [LAB, OTHER]))
    made.write_bundle(tmp_path / "class" / "bundled.bundle", tmp_path / "repo", made.solutions([LAB, OTHER]))
    made.write_folder(tmp_path / "class" / "bare", {f"labs/{LAB.slug}/starter.py": b"x = 1\n"})
    found = {s.name: s for s in take_in(tmp_path / "class", [LAB, OTHER], 1 << 18)}
    assert set(found) == names | {"bundled", "bare"}
    assert set(found["bundled"].files) == {LAB.key, OTHER.key} and found["bundled"].when is not None
    assert found["bare"].files == {LAB.key: b"x = 1\n"}
    assert set(found["edited-tests"].files) == {LAB.key, OTHER.key}
    for name, words in {
        "link-out": "not a regular file",
        "zip-bomb": "allowed are 262144",
        "broken-zip": "cannot be read",
        "broken-bundle": "cannot be read",
        "climbs-out": "holds no labs",
        "empty": "holds no labs",
    }.items():
        assert not found[name].files and words in found[name].problems[0], name
    with pytest.raises(LabError, match="does not exist"):
        take_in(tmp_path / "nobody", [LAB], 1)
    assert lab_of_entry("phase-09-x/labs/" + LAB.slug + "/starter.py", [LAB]) is None


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
    path.write_text("weigths = 1\n")
    with pytest.raises(LabError, match="unknown key weigths"):
        read_settings(path)


def test_look_alikes_are_found_under_other_names() -> None:
    lab = find_labs("02-01")[0]
    text = (lab.folder / "solution.py").read_text(encoding="utf-8")
    renamed = "# mine\n" + text.replace("block", "piece")
    class_ = [Submission(n, {lab.key: t.encode()}) for n, t in (("a", text), ("b", renamed))]
    class_.append(Submission("c", {lab.key: (lab.folder / "starter.py").read_bytes()}))
    (pair,) = similar(class_, lab, (lab.folder / "starter.py").read_bytes())
    assert (pair.first, pair.second) == ("a", "b") and pair.share > 0.9


def test_notes_are_one_line_each_and_bad_formats_are_named(tmp_path: Path) -> None:
    grades = Grades([LAB], [Submission("a", {}, ["holds nothing"])], [], Settings())
    assert notes(grades) == ["a: holds nothing"]
    command = [sys.executable, "-m", "course", "grade", str(tmp_path), "--format", "xml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "table, csv, json, junit" in done.stderr
