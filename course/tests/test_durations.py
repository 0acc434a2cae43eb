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

WORK = """

def test_work():
    import time
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
"""


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
def test_what_tests_cost_is_written(options: tuple[str, ...], run: Run, small_course: Path) -> None:
    (small_course / FIRST / "test_lab.py").write_text(TESTS + WORK)
    target = small_course / ".course" / "durations.json"
    done = run("-q", *options, FIRST, COURSE_DURATIONS=str(target))
    assert done.returncode == 0, done.stdout
    found = json.loads(target.read_text())
    assert set(found["folders"]) == {"phase-00-foundations"} and found["unit"] > 0
    assert found["folders"]["phase-00-foundations"] >= 0.2


def shown(path: Path, found: object) -> tuple[int, str]:
    path.write_text(json.dumps(found))
    console = Console(width=100, record=True, file=io.StringIO())
    return durations.show(path, console), console.export_text()


def test_budgets(tmp_path: Path) -> None:
    folders = {"course": 154.0, "mini_vllm": 231.0, "phase-09-x": 14.0, "phase-10-y": 16.0}
    over, text = shown(tmp_path / "x", {"unit": durations.UNIT, "folders": folders})
    assert over == 2 and "fast twin" in text
    over, text = shown(tmp_path / "x", {"unit": 2 * durations.UNIT, "folders": folders})
    assert over == 0 and "115.5" in text and "231.0" in text, "the machine is half as fast"


def test_a_file_that_says_nothing_is_no_pass(tmp_path: Path) -> None:
    for found in ({"unit": 1.0, "folders": {}}, {"unit": 0.0, "folders": {"a": 1}}, {"folders": {"a": 1}}, []):
        with pytest.raises(LabError, match=r"names no test|is not what COURSE_DURATIONS wrote"):
            shown(tmp_path / "x", found)
    with pytest.raises(LabError, match="FileNotFoundError"):
        durations.show(tmp_path / "nowhere", Console(file=io.StringIO()))
