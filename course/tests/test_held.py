"""A lab that changed after it was done: "done (earlier version)", and done all the same."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from course import cli
from course.labs import lab_of
from course.loop import held, outcomes, progress, record
from course.tests.conftest import FIRST, SECOND, SOLUTION, TESTS

pytestmark = pytest.mark.maintainer

KEY = FIRST.replace("/labs/", "/")
IMPORTS = "from mini_vllm import Scheduler\nimport mini_vllm.request\n"


def ran(root: Path, folder: str = FIRST) -> None:
    """Records a run in which every test of a lab passed."""
    lab = lab_of(folder)
    assert lab is not None
    outcomes.remember(root, [outcomes.LabOutcome(lab, {"a": outcomes.TestOutcome("a", "passed", True)})])


@pytest.fixture
def done(small_course: Path) -> Path:
    """The small course with its first lab done."""
    (small_course / FIRST / "starter.py").write_text(SOLUTION)
    (small_course / FIRST / "test_lab.py").write_text(IMPORTS + TESTS + "\n\nX = mini_vllm.request.Request\n")
    ran(small_course)
    return small_course


def first(root: Path) -> progress.LabProgress:
    return progress.all_progress(root)[0]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("test_lab.py", "== 5", "== 6"),
        ("test_lab.py", '"negative"', '"below zero"'),
        ("test_lab.py", "def test_add", "@pytest.mark.provided\ndef test_add"),
        ("solution.py", "def double(x: int)", "def double(x: float)"),
        ("solution.py", "Twice x.", "Two times x."),
        ("solution.py", "n: int = 0", "n: int = 1"),
    ],
)
def test_what_was_asked_has_changed(done: Path, file: str, old: str, new: str) -> None:
    assert first(done).state == "done"
    path = done / FIRST / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert first(done).state == "done (earlier version)" and first(done).done
    ran(done)
    assert first(done).state == "done"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("test_lab.py", IMPORTS, "from mini_vllm import (\n    Scheduler,\n)\nfrom mini_vllm.core import request\n"),
        ("test_lab.py", "mini_vllm.request.Request", "mini_vllm.core.Request"),
        ("test_lab.py", "mini_vllm.request.Request", "Request"),
        ("test_lab.py", "def test_add", "@pytest.mark.slow\ndef test_add"),
        ("test_lab.py", "def test_add", "pytestmark = pytest.mark.needs_torch\n\n\ndef test_add"),
        ("test_lab.py", "def test_add(impl):\n", "def test_add(impl):\n    '''Adds.'''  # it does\n\n"),
        ("test_lab.py", "    counter = impl.Counter()\n", "    counter = (\n        impl.Counter()\n    )\n"),
        ("solution.py", "return 2 * x", "return x + x"),
        ("solution.py", "def shout", "def _mine():\n    pass\n\n\ndef shout"),
    ],
)
def test_what_was_asked_is_the_same(done: Path, file: str, old: str, new: str) -> None:
    path = done / FIRST / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert first(done).state == "done"


def test_a_docstring_may_name_a_place_that_moves(done: Path) -> None:
    solution = done / FIRST / "solution.py"
    solution.write_text(solution.read_text().replace("Twice x.", "Twice a `mini_vllm.kv_cache.X`."))
    ran(done)
    solution.write_text(solution.read_text().replace("mini_vllm.kv_cache.X", "mini_vllm.core.kv.X"))
    assert first(done).state == "done"
    solution.write_text(solution.read_text().replace("mini_vllm.core.kv.X", "mini_vllm.core.kv.Y"))
    assert first(done).state == "done (earlier version)"


def test_a_record_without_a_contract_holds_for_the_present_one(done: Path) -> None:
    rows = outcomes.recall(done)
    del rows[KEY]["contract"]
    record.write_json(done / outcomes.RECORD, rows)
    assert first(done).state == "done"
    ran(done, SECOND)  # any later run writes down what the first lab is held to now
    assert first(done).state == "done"
    tests = done / FIRST / "test_lab.py"
    tests.write_text(tests.read_text() + "\n\ndef test_more(impl):\n    assert impl.double(0) == 0\n")
    assert first(done).state == "done (earlier version)"
    ran(done, SECOND)
    assert first(done).state == "done (earlier version)"


def test_it_counts_as_done_and_the_words_are_shown(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = done / FIRST / "test_lab.py"
    tests.write_text(tests.read_text().replace("== 5", "== 7"))
    labs = progress.all_progress(done)
    following = progress.next_lab(labs)
    assert following is not None and following.slug in SECOND
    monkeypatch.setattr(progress, "all_progress", lambda: labs)
    console = Console(width=160, record=True, file=io.StringIO())
    cli.show_progress(console)
    said = console.export_text()
    assert "01 done (earlier version)" in said and "1 of 2 labs done" in said and "Begun" not in said
    assert "Changed since you did them, done all the same: 00-01. To see what is new: course test 00-01" in said


def test_a_lab_without_files_asks_for_nothing(tmp_path: Path) -> None:
    assert held.contract(tmp_path) == "" and not held.is_earlier({"contract": ""}, tmp_path)


def test_rows_that_are_none_are_left_out(done: Path) -> None:
    path = done / outcomes.RECORD
    path.write_text('{"x": 3, "y": {}, ' + path.read_text().lstrip("{ \n"))
    assert first(done).state == "done" and list(outcomes.recall(done)) == [KEY]
