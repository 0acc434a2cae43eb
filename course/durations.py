"""What the suite costs: seconds that one waits for the tests of a folder, and how many it may take.

``COURSE_DURATIONS=FILE pytest -m "not (gpu or slow or maintainer)" -n 2`` writes them; ``course verify --durations
FILE`` shows them beside the budgets, and fails where a folder is over its own. They are seconds by the clock: those of
all workers together, divided by their number, so that the folders add up to the whole. A fixed piece of work is timed
between the tests: where it takes more than ``TOLERATED`` times as long as on the machine that the budgets are made
for, the machine is busy or another one, the table says so, and nothing is judged. What the machine gives to others
meanwhile, by the clock of the same piece of work, is nothing that the tests cost."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from course.labs import LabError

UNIT, EVERY, TOLERATED = 0.0115, 2.0, 1.6
"""Processor seconds of the piece of work where two workers share a machine of two cores and do nothing else."""
COLLECTION = "collection"
BUDGETS = {"mini_vllm": 190.0, "course": 30.0, COLLECTION: 35.0}
OTHERS = 7.0
"""Seconds of each other folder on two workers: a phase, the models, the benchmarks."""


def unit() -> tuple[float, float]:
    """Processor seconds of a fixed piece of work, and how many times as long it took by the clock."""
    began, start = time.perf_counter(), time.process_time()
    table: dict[int, int] = {}
    for i in range(50_000):
        table[i & 1023] = table.get(i & 511, 0) + i
    seconds = time.process_time() - start
    return seconds, min(max((time.perf_counter() - began) / seconds, 1.0), 10.0)


class Recorder:
    """A pytest plugin that adds up what each test takes; with xdist, what the workers say."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folders: dict[str, float] = defaultdict(float)
        self.units = [unit()]
        self.since, self.workers = 0.0, 0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        self.folders[COLLECTION] += time.monotonic() - before

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = time.monotonic()
        yield
        took = time.monotonic() - before
        self.folders[item.nodeid.partition("/")[0]] += took
        self.since += took
        if self.since > EVERY:
            self.units.append(unit())
            self.since = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if self.workers == 0:
            self.folders.clear()  # the controller collects nothing
        said = getattr(node, "workeroutput", {}).get("course_durations", {})
        self.workers += 1
        for name, seconds in said.get("folders", {}).items():
            self.folders[name] += seconds
        self.units += said.get("units", [])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            said = {"folders": dict(self.folders), "units": self.units}
            session.config.workeroutput["course_durations"] = said  # type: ignore[attr-defined]
            return
        each = {name: round(seconds / max(self.workers, 1), 2) for name, seconds in self.folders.items()}
        computed, waited = zip(*self.units, strict=True)
        found = {"unit": median(computed), "busy": fmean(waited), "folders": each}
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def show(path: Path, console: Console) -> int:
    """Shows what ``Recorder`` wrote; how many folders take too much. Raises :class:`LabError` for another file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        folders, busy = found["folders"], float(found.get("busy", 1.0))
        slowness = found["unit"] / UNIT * busy
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is not what COURSE_DURATIONS wrote: {type(error).__name__}: {error}") from None
    if not set(folders) - {COLLECTION}:
        raise LabError(f"{path} names no test: nothing was run")
    table = Table("folder", "seconds", "may take", title="what one waits for")
    for column in table.columns[1:]:
        column.justify = "right"
    over = 0
    for name, seconds in sorted(folders.items()):
        most = BUDGETS.get(name, OTHERS)
        is_over = seconds / busy > most
        over += is_over
        colour = "red" if is_over else "green"
        table.add_row(name, f"[{colour}]{seconds:.1f}[/]", f"{most:g}")
    table.add_row("all", f"{sum(folders.values()):.1f}", f"{sum(BUDGETS.get(name, OTHERS) for name in folders):g}")
    console.print(table)
    if over and slowness > TOLERATED:
        console.print(
            f"This machine is busy, or {slowness:.1f} times slower than theirs: the budgets judge nothing here."
        )
        return 0
    if over:
        console.print("Make tests smaller, share what they build, or mark the long ones slow beside a fast twin.")
    return over
