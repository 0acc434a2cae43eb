"""A small course of its own for the tests of the machinery."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from course.contract import zygote
from course.labs import ROOT

SOLUTION = '''"""A lab."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counter:
    """Counts."""

    n: int = 0

    def add(self, by: int) -> int:
        """Adds ``by`` and returns the sum; negative steps are refused."""
        if by < 0:
            raise ValueError("by must not be negative")
        self.n += by
        return self.n


def double(x: int) -> int:
    """Twice x."""
    return 2 * x


def shout(text: str) -> str:
    """Provided: upper case."""
    return text.upper()
'''

STARTER = SOLUTION.replace(
    """        if by < 0:
            raise ValueError("by must not be negative")
        self.n += by
        return self.n
""",
    """        raise NotImplementedError("Refuse a negative step, then add it to n.")
""",
).replace("    return 2 * x\n", '    raise NotImplementedError("Return twice x.")\n')

TESTS = """
import pickle

import pytest


def test_add(impl):
    counter = impl.Counter()
    assert counter.add(2) == 2 and counter.add(3) == 5


def test_negative(impl):
    with pytest.raises(ValueError, match="negative"):
        impl.Counter().add(-1)


def test_runtime_error_does_not_hide_a_stub(impl):
    with pytest.raises(RuntimeError, match="odd"):
        if impl.double(2) == 4:
            raise RuntimeError("odd")


@pytest.mark.provided
def test_shout(impl):
    assert impl.shout("a") == "A"
    assert pickle.loads(pickle.dumps(impl.Counter(2))) == impl.Counter(2)
"""

FIRST = "phase-00-foundations/labs/lab-01-kv-cache-speedup"
SECOND = "phase-00-foundations/labs/lab-02-kv-memory-calculator"

Run = Callable[..., subprocess.CompletedProcess[str]]
LIMITS = {"course.plugs.milestone": "TIME_LIMIT", "course.plugs.payoff": "SECONDS", "course.plugs.warmup": "SECONDS"}
"""Module -> its limit by the clock for what a learner has written."""


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never ends has a test of its own; everything else is late on a busy machine, and no more."""
    for name, limit in LIMITS.items():
        if (module := sys.modules.get(name)) is not None:
            monkeypatch.setattr(module, limit, 600.0)


@pytest.fixture
def small_course(tmp_path: Path) -> Path:
    """Two labs of one phase, with this repository's pytest settings."""
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in (FIRST, SECOND):
        lab = tmp_path / folder
        lab.mkdir(parents=True)
        (lab / "solution.py").write_text(SOLUTION, encoding="utf-8")
        (lab / "starter.py").write_text(STARTER, encoding="utf-8")
        (lab / "test_lab.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(small_course: Path) -> Run:
    """Runs pytest in the small course: ``run("-q", LAB_IMPL="starter")``."""

    def call(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LAB_IMPL", "COURSE_", "PYTEST_"))}
        clean |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **env}
        return zygote.python("pytest", ["-p", "no:cacheprovider", "-p", "pytest_timeout", *args], small_course, clean)

    return call
