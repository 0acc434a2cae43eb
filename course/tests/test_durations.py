"""What the suite costs, by folder: written by pytest with and without xdist, judged by `course verify --durations`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from course import durations
from course.labs import LabError
from course.tests.conftest import FIRST, TESTS, Run

pytestmark = pytest.mark.maintainer

WORK = """

def test_work():
    import time
    time.sleep(0.3)
"""


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
def test_what_tests_cost_is_written(options: tuple[str, ...], run: Run, small_course: Path) -> None:
    (small_course / FIRST / "test_lab.py").write_text(TESTS + WORK)
    target = small_course / ".course" / "durations.json"
    done = run("-q", *options, FIRST, COURSE_DURATIONS=str(target))
    assert done.returncode == 0, done.stdout
    found = json.loads(target.read_text())
    assert set(found["folders"]) == {"phase-00-foundations", "collection"} and found["unit"] > 0 and found["busy"] >= 1
    assert found["folders"]["phase-00-foundations"] >= (0.15 if options else 0.3)  # the seconds of two, halved


def shown(path: Path, found: object) -> tuple[int, str]:
    path.write_text(json.dumps(found))
    console = Console(width=100, record=True, file=io.StringIO())
    return durations.show(path, console), console.export_text()


def test_budgets_add_up_and_are_seconds_of_the_clock(tmp_path: Path) -> None:
    folders = {"course": 29.0, "mini_vllm": 191.0, "phase-09-x": 3.0, "phase-10-y": 7.5, "collection": 20.0}
    over, text = shown(tmp_path / "x", {"unit": durations.UNIT, "folders": folders})
    assert over == 2 and "fast twin" in text and "250.5" in text and "269" in text
    over, text = shown(tmp_path / "x", {"unit": 1.5 * durations.UNIT, "folders": folders})
    assert over == 2, "a machine that is a little slower takes no more"
    assert shown(tmp_path / "x", {"unit": durations.UNIT, "busy": 1.02, "folders": folders})[0] == 1
    assert shown(tmp_path / "x", {"unit": durations.UNIT, "busy": 1.1, "folders": folders})[0] == 0, "it had 9 tenths"
    over, text = shown(tmp_path / "x", {"unit": 3 * durations.UNIT, "folders": folders})
    assert over == 0 and "3.0 times slower" in text and "budgets judge nothing here" in text


def test_a_file_that_says_nothing_is_no_pass(tmp_path: Path) -> None:
    for found in (
        {"unit": 1.0, "folders": {"collection": 1.0}},
        {"unit": 1.0, "folders": {}},
        {"folders": {"a": 1}},
        [],
    ):
        with pytest.raises(LabError, match=r"names no test|is not what COURSE_DURATIONS wrote"):
            shown(tmp_path / "x", found)
    with pytest.raises(LabError, match="FileNotFoundError"):
        durations.show(tmp_path / "nowhere", Console(file=io.StringIO()))
