"""What the suite costs: processor seconds of its tests by folder, and what each folder may take.

``COURSE_DURATIONS=FILE pytest -m "not gpu and not slow" -n 2`` writes them; ``course verify --durations FILE`` shows
them beside the budgets, and fails where one is exceeded. Processor time, not the clock: a busy machine does not count.
A slow one does, so the time that a fixed piece of work took in the same process is written too, and the budgets are
seconds of a machine on which it takes ``UNIT``. A step that no test waits for (a process left running) is not seen.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from course.labs import LabError

UNIT = 0.1
BUDGETS = {"mini_vllm": 60.0, "course": 45.0}
OTHERS = 15.0
"""Processor seconds of each other folder: a phase, the models, the benchmarks."""


ELSEWHERE = [0.0]
"""Processor seconds of what a process that is not waited for did for this one; who asks it adds them here."""


def spent() -> float:
    """Processor seconds of this process, of the children that it has waited for, and ``ELSEWHERE``."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + ELSEWHERE[0]


def unit() -> float:
    """Processor seconds of a fixed piece of work, the least of three."""
    found: list[float] = []
    for _ in range(3):
        start = time.process_time()
        table: dict[int, int] = {}
        for i in range(1_250_000):
            table[i & 1023] = table.get(i & 511, 0) + i
        found.append(time.process_time() - start)
    return min(found)


class Recorder:
    """A pytest plugin that adds up what each test costs; with xdist, what the workers say."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folders: dict[str, float] = defaultdict(float)
        self.units: list[float] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = spent()
        yield
        self.folders[item.nodeid.partition("/")[0]] += spent() - before

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        said = getattr(node, "workeroutput", {}).get("course_durations", {})
        for name, seconds in said.get("folders", {}).items():
            self.folders[name] += seconds
        self.units += said.get("units", [])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            said = {"folders": dict(self.folders), "units": [unit()]}
            session.config.workeroutput["course_durations"] = said  # type: ignore[attr-defined]
            return
        found = {"unit": min(self.units or [unit()]), "folders": {k: round(v, 2) for k, v in self.folders.items()}}
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def show(path: Path, console: Console) -> int:
    """The table of a file that ``Recorder`` wrote; returns how many folders take more than they may.

    Raises :class:`LabError` where the file cannot be read, or holds no test of the course.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        folders, scale = found["folders"], UNIT / found["unit"]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise LabError(f"{path} is not what COURSE_DURATIONS wrote: {type(error).__name__}: {error}") from None
    if not folders:
        raise LabError(f"{path} names no test: nothing was run")
    table = Table("folder", "processor s", "here", "may take", title="what the tests cost")
    for column in table.columns[1:]:
        column.justify = "right"
    over = 0
    for name, seconds in sorted(folders.items()):
        most, scaled = BUDGETS.get(name, OTHERS), seconds * scale
        over += scaled > most
        colour = "red" if scaled > most else "green"
        table.add_row(name, f"[{colour}]{scaled:.1f}[/]", f"{seconds:.1f}", f"{most:g}")
    console.print(table)
    if over:
        console.print("Make tests smaller, share what they build, or mark the long ones slow beside a fast twin.")
    return over
