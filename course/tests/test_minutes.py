"""Minutes of labs: the rule, what is stated beside it, and the writer that brings the two together."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from course.contract import minutes
from course.labs import ROOT, Lab, lab_folders, lab_of
from course.tests.conftest import FIRST, SECOND

pytestmark = pytest.mark.maintainer

HEAD = "# Lab 00-01\n\n| | |\n|---|---|\n| **Time** | {} |\n\n{}\n"
INDEX = "# Labs\n\n### 01 · The cache `[CPU-OK]` · {} minutes\n\n### 02 · Another `[CPU-OK]` · 5 minutes\n"
TABLE = """[phase-00-foundations.lab-01-kv-cache-speedup]
tag = "CPU-OK"
minutes = {}

[phase-00-foundations.lab-02-kv-memory-calculator]
minutes = 5
tag = "CPU-OK"
"""


@pytest.fixture
def course(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (small_course / "labs.toml").write_text(TABLE.format(90))
    monkeypatch.setattr(minutes, "TABLE", small_course / "labs.toml")
    (small_course / FIRST / "README.md").write_text(HEAD.format("90 minutes, 5 more on a GPU", "word " * 2400))
    (small_course / SECOND / "README.md").write_text(HEAD.format("5 minutes (an estimate)", ""))
    (small_course / FIRST).parent.joinpath("README.md").write_text(INDEX.format(80))
    return small_course


def stated(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(minutes, "lab_of", lambda folder: Lab("phase-00-foundations", folder.name, "CPU-OK", number))


def test_the_rule(course: Path) -> None:
    assert minutes.estimate(course / FIRST) == 25  # 2,400 words, four lines, four tests
    assert minutes.estimate(course / SECOND) == 5
    tests = course / SECOND / "test_lab.py"
    more = "".join(f"\n\ndef test_{n}(impl):\n    assert impl\n" for n in range(20))
    tests.write_text(tests.read_text() + more)
    assert minutes.estimate(course / SECOND) == 15
    solution = course / SECOND / "solution.py"
    body = "".join(f"    x = x + {n}\n" for n in range(40))
    solution.write_text(solution.read_text().replace("    return 2 * x\n", f"{body}    return x\n"))
    assert minutes.estimate(course / SECOND) == 35


def test_what_is_stated_is_near_and_the_same_everywhere(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated(monkeypatch, 90)
    near, same = (problem.text for problem in minutes.check(course / FIRST))
    assert near.startswith("00-01 kv-cache-speedup: minutes = 90, by the rule 25; `python -m")
    assert same.startswith("00-01 kv-cache-speedup must state `90 minutes (an estimate)`")
    minutes.write(course)
    stated(monkeypatch, 25)
    assert minutes.check(course / FIRST) == []
    assert "| **Time** | 25 minutes (an estimate), 5 more on a GPU |" in (course / FIRST / "README.md").read_text()
    assert (course / FIRST).parent.joinpath("README.md").read_text() == INDEX.format(25)
    assert (course / "labs.toml").read_text() == TABLE.format(25)
    stated(monkeypatch, 35)
    assert [problem.path.name for problem in minutes.check(course / FIRST)] == ["README.md"], "ten minutes are near"
    stated(monkeypatch, 26)
    assert len(minutes.check(course / FIRST)) == 2, "nobody knows it to a minute"


def test_what_is_near_stays(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated(monkeypatch, 15)
    minutes.write(course)
    assert "minutes = 15\n" in (course / "labs.toml").read_text()
    assert "15 minutes" in (course / SECOND / "README.md").read_text()


@pytest.mark.parametrize("phase", sorted({folder.parents[1] for folder in lab_folders(ROOT)}), ids=lambda p: p.name[:8])
def test_hours_in_a_guide_are_those_of_its_labs(phase: Path) -> None:
    """To half an hour, give or take a quarter."""
    labs = [lab for folder in lab_folders(ROOT) if folder.parents[1] == phase and (lab := lab_of(folder))]
    guide = (phase / "00-guide.md").read_text(encoding="utf-8")
    found = re.search(r"([\d.]+) (?:hours|more) for the \[?\w+ labs", guide)
    assert found is not None and abs(float(found[1]) - sum(lab.minutes for lab in labs) / 60) <= 0.5


def test_the_readme_counts_the_labs_of_each_phase() -> None:
    rows = re.findall(r"^\| (\d\d) \|.*\| here, (\d+) labs \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    counted = Counter(folder.parents[1].name[6:8] for folder in lab_folders(ROOT))
    assert {phase: int(number) for phase, number in rows} == counted
