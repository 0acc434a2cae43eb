"""What the suite costs: processor seconds of its tests by folder, and what each folder may take.

``COURSE_DURATIONS=FILE pytest -m "not gpu and not slow" -n 2`` writes them; ``course verify --durations FILE`` shows
them beside the budgets, and fails where one is exceeded. Processor time, not the clock; and as a slow machine takes
more of it, and a busy one too (two programs share a core), a fixed piece of work is timed between the tests: the
budgets are seconds of a machine on which it takes ``UNIT``. A process that no test waits for is not seen."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from course.contract.zygote import ELSEWHERE
from course.labs import LabError

UNIT, EVERY = 0.004, 2.0
BUDGETS = {"mini_vllm": 230.0, "course": 170.0}
OTHERS = 15.0
"""Processor seconds of each other folder: a phase, the models, the benchmarks."""


def spent() -> float:
    """Processor seconds of this process, of the children that it has waited for, and those of the servers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + ELSEWHERE[0]


def unit() -> float:
    """Processor seconds of a fixed piece of work."""
    start = time.process_time()
    table: dict[int, int] = {}
    for i in range(50_000):
        table[i & 1023] = table.get(i & 511, 0) + i
    return time.process_time() - start


class Recorder:
    """A pytest plugin that adds up what each test costs; with xdist, what the workers say."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folders: dict[str, float] = defaultdict(float)
        self.units = [unit()]
        self.since = 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = spent()
        yield
        took = spent() - before
        self.folders[item.nodeid.partition("/")[0]] += took
        self.since += took
        if self.since > EVERY:
            self.units.append(unit())
            self.since = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        said = getattr(node, "workeroutput", {}).get("course_durations", {})
        for name, seconds in said.get("folders", {}).items():
            self.folders[name] += seconds
        self.units += said.get("units", [])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            said = {"folders": dict(self.folders), "units": self.units}
            session.config.workeroutput["course_durations"] = said  # type: ignore[attr-defined]
            return
        found = {"unit": median(self.units), "folders": {k: round(v, 2) for k, v in self.folders.items()}}
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def show(path: Path, console: Console) -> int:
    """Shows what ``Recorder`` wrote; how many folders take too much. Raises :class:`LabError` for another file."""
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
