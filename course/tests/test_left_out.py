"""What a run left out is told in a line a remedy; few tests, or `-rs`, are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.failures.left_out import told
from course.tests.conftest import FIRST, TESTS, Run

pytestmark = pytest.mark.maintainer

SKIPS = """

@pytest.mark.parametrize("n", range(7))
def test_page(n):
    pytest.skip("upstream/ is absent: run `course upstream`")
"""


def test_a_line_for_each_thing_that_is_missing() -> None:
    reasons = ["Skipped: could not import 'torch': No module named 'torch'"] * 3
    reasons += [
        "Skipped: upstream/ is absent: run `course upstream`",
        "Skipped: of its own",
        "Skipped: needs an NVIDIA GPU",
    ]
    assert told(reasons) == [
        '3 tests left out without torch and its kin: pip install torch -e ".[dev,hub,triton]"',
        "1 test left out without the pinned vLLM source: course upstream",
        "1 test left out without a GPU",
        "1 test left out for other reasons: -rs lists them",
    ]
    assert told([]) == []


def test_many_are_told_in_a_line_and_listed_on_request(run: Run, small_course: Path) -> None:
    (small_course / FIRST / "test_lab.py").write_text(TESTS + SKIPS)
    said = run("-q", FIRST).stdout
    assert "7 tests left out without the pinned vLLM source: course upstream\n" in said and "SKIPPED" not in said
    assert "SKIPPED [7]" in run("-q", "-rs", FIRST).stdout
    (small_course / FIRST / "test_lab.py").write_text(TESTS + SKIPS.replace("range(7)", "range(2)"))
    said = run("-q", FIRST).stdout
    assert "left out" not in said and "SKIPPED [2]" in said, "two are read"
