"""Puts diffs on copies of the pinned tree and drives the scheduler that comes out. Given: nothing to edit."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from course.labs import ROOT, load
from mini_vllm.tests.golden.packed import read_packed

HERE = Path(__file__).resolve().parent
PATCHES = HERE.parents[1] / "patches"
overlay = load(PATCHES / "overlay.py")
describe = load(PATCHES / "describe.py")
workloads = load(HERE / "workloads.py")
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
MOST_LINES = 40
QUESTIONS = (
    "Cost per step",
    "Pipeline parallelism and async scheduling",
    "Several KV cache groups",
    "Blocks that are shared",
    "KV events",
    "Connectors",
    "Why not register after the step",
)
"""What a reviewer would ask; each a heading of the third level in the pull request."""


def upstream() -> Path:
    """The pinned tree; the test skips where it has not been fetched."""
    tree = (ROOT / "upstream").resolve()
    if not (tree / SCHEDULER).is_file() or not (tree / "tests/v1/core").is_dir():
        pytest.skip("needs the pinned tree: run `course upstream`")
    return tree


def source_part(diff: str) -> str:
    """A diff without what it changes below `tests/`."""
    parts = re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)
    return "".join(part for part in parts if not any(name.startswith("tests/") for name in overlay.touched(part)))


def new_tests(diff: str) -> list[str]:
    """The node ids of the tests that a diff adds."""
    found = []
    for part in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        for name in (name for name in overlay.touched(part) if name.startswith("tests/")):
            found += [f"{name}::{test}" for test in re.findall(r"^\+def (test_\w+)", part, re.MULTILINE)]
    return found


def answers(text: str) -> dict[str, str]:
    """What a pull request says below each heading of the third level, up to the next heading."""
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    return {title: body.partition("\n## ")[0] for title, body in zip(parts[1::2], parts[2::2], strict=True)}


@functools.cache
def drive(diffs: tuple[str, ...], name: str) -> list[dict[str, Any]]:
    """What the scheduler of the pinned tree with these diffs plans for the workloads of that name (see `_named`)."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "vllm"
        try:
            overlay.build(tree, [source_part(diff) for diff in diffs], upstream())
        except overlay.PatchError as error:
            pytest.fail(f"{error}", pytrace=False)
        command = [sys.executable, str(HERE / "bare_scheduler.py"), str(tree)]
        done = subprocess.run(command, input=json.dumps(_named(name)), capture_output=True, text=True, timeout=300)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-4:])  # the line and the error; Python's own frames say less
        pytest.fail(f"the scheduler cannot be loaded with this diff:\n{last}", pytrace=False)
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def _named(name: str) -> list[dict[str, Any]]:
    kind, _, number = name.partition(" ")
    if kind == "three":
        return [workloads.MISSED_TURN, workloads.UNWRITTEN, workloads.BEHIND]
    if kind == "chunks":
        return [workloads.CHUNKS_OF_SIX]
    if kind == "fcfs":
        found: list[dict[str, Any]] = workloads.first_come_first_served(int(number))
        return found
    return [workloads.pressed(seed) for seed, _ in recorded(int(number))]


@functools.cache
def recorded(of_each: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """(seed, steps) of so many recorded workloads for each defect, as the release ran them with both mended."""
    bugs = read_packed(ROOT / "mini_vllm/tests/golden/scheduler-bugs.json.xz")["bugs"]
    return [(one["seed"], one["patched"]) for pairs in bugs.values() for one in pairs[:of_each]]
