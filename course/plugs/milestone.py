"""`course milestone`: your parts in the engine, one by one and together, and what holds.

Each part that is written runs alone among our own parts through the checks that concern it, and then through a
workload of 50 requests; the parts that hold run together through both, and through some of the engine's own tests."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from course.labs import ROOT, tomllib
from course.plugs.milestone_checks import CHECKS, Check, checks_for, workload
from course.plugs.parts import NOT_YET, TABLE, Part, assemble, find_parts, waiting
from mini_vllm.engine.parts import EngineParts, PartError

TIME_LIMIT = 60.0
"""Seconds that all checks of one part may take."""
NUM_REQUESTS = 50
TESTS = "mini_vllm/tests/"
SUITE: dict[str, list[str]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["suite"]


@dataclass
class Result:
    """One row: `state` is "holds", "broken", "not written", "absent" or "does not load"; `held` of `claims` checks.
    `reference` is the speed of our own parts, measured just before."""

    part: str
    lab: str
    state: str
    detail: str = ""
    held: int = 0
    claims: int = 0
    tokens_per_second: float = 0.0
    reference: float = 0.0


@dataclass
class Milestone:
    """A row a part, the parts that hold run together, and the suite."""

    results: list[Result]
    together: Result | None = None
    suite: Result | None = None

    @property
    def rows(self) -> list[Result]:
        """All of them."""
        return [*self.results, *(row for row in (self.together, self.suite) if row)]

    @property
    def broken(self) -> bool:
        """Whether something that is written does not hold."""
        return any(row.state in ("broken", "does not load") for row in self.rows)


def run(
    with_labs: str | Sequence[str] = "all",
    num_requests: int = NUM_REQUESTS,
    suite: bool = True,
    found: Sequence[Part] | None = None,
    note: Callable[[str], Any] = lambda text: None,
) -> Milestone:
    """The whole milestone. `found` replaces what `find_parts` finds; `note` is told what runs now."""
    found = find_parts(with_labs) if found is None else found
    asked = [part for part in found if part.state != "ours"]
    expected: list[list[int]] = []
    if any(part.state == "lab" for part in asked):
        note("the reference")
        expected, _ = workload(None, num_requests)
    results = []
    for part in asked:
        note(part.plug.part)
        results.append(_one(part, expected, num_requests))
    made = Milestone(results)
    holding = [part for part, row in zip(asked, results, strict=True) if row.state == "holds"]
    if holding:
        note("all that hold, together")
        row = Result("together", " ".join(dict.fromkeys(part.plug.lab for part in holding)), "holds")
        made.together = _prove(row, fresh(holding), CHECKS, expected, num_requests)
        if suite:
            note("the engine's own suite")
            made.suite = run_suite(with_labs, [part.plug.part for part in holding])
    return made


def fresh(found: Sequence[Part]) -> EngineParts:
    """Parts with guards that have seen nothing yet."""
    return assemble([replace(part) for part in found], quiet=True)


def _one(part: Part, expected: list[list[int]], num_requests: int) -> Result:
    row = Result(part.plug.part, part.plug.lab, part.state, part.detail)
    if part.state != "lab":
        return row
    row.state, row.detail = "holds", ""
    return _prove(row, fresh([part]), checks_for(part.plug.part), expected, num_requests)


def _prove(
    row: Result, parts: EngineParts, checks: Sequence[Check], expected: list[list[int]], num_requests: int
) -> Result:
    row.claims = len(checks) + 1
    claim = ""
    try:
        with time_limit(TIME_LIMIT):
            for check in checks:
                claim = check.claim
                check.run(parts)
                row.held += 1
            claim = f"{num_requests} requests on the committed checkpoint"
            _, row.reference = workload(None, num_requests)
            made, row.tokens_per_second = workload(parts, num_requests)
            assert made == expected, "the tokens differ from the reference's"
            row.held += 1
    except PartError as error:
        row.state, row.detail = "broken", str(error)
    except Exception as error:
        row.state, row.detail = "broken", f"{claim}: {error or type(error).__name__}"
    return row


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside whatever runs too long; without effect where there is no SIGALRM."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TimeoutError(f"it ran longer than {seconds:.0f} s; does a loop never end?")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_suite(with_labs: str | Sequence[str], parts: Sequence[str]) -> Result:
    """The tests of `SUITE` in a process of their own, in which every engine is made of these parts."""
    words = with_labs if isinstance(with_labs, str) else ",".join(with_labs)
    env = {**os.environ, "COURSE_PLUGS": words, "COURSE_PLUG_PARTS": ",".join(parts), "COURSE_NO_RECORD": "1"}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tests = [TESTS + test for group in SUITE.values() for test in group]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_timeout", "-p", "course.plugs.suite", "--tb=line"]
    command += ["-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    last = (done.stdout.strip().splitlines() or ["it printed nothing"])[-1]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    row = Result("engine's own suite", "", "holds", held=counts.get("passed", 0), claims=sum(counts.values()))
    if done.returncode:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        row.state, row.detail = "broken", (failed or [done.stderr.strip()[-200:] or last])[0]
    return row


def show(milestone: Milestone, console: Console) -> None:
    """The table of what is written, the reasons of what does not hold, what is to be written next."""
    rows = [row for row in milestone.rows if row.state not in NOT_YET]
    table = Table("part", "lab", "state", "proved", "tokens/s", "reference", "share", title="your code in the engine")
    for column in table.columns[3:]:
        column.justify = "right"
    for row in rows:
        mine, ours = row.tokens_per_second, row.reference
        speeds = [f"{mine:.0f}", f"{ours:.0f}", f"{100 * mine / ours:.0f} %"] if mine else ["", "", ""]
        proved = f"{row.held} of {row.claims}" if row.claims else ""
        colour = "green" if row.state == "holds" else "red"
        table.add_row(row.part, row.lab, f"[{colour}]{row.state}[/]", proved, *speeds)
    console.print(table if rows else "Nothing of yours is in the engine yet.")
    for row in rows:
        if row.detail:
            head = f"{row.part} ({row.lab})" if row.lab else row.part
            text = row.detail if row.state == "broken" else f"{row.state}: {row.detail}"
            console.print(f"[bold]{escape(head)}[/] {escape(text)}", highlight=False, soft_wrap=not console.is_terminal)
    if left := [row for row in milestone.results if row.state in NOT_YET]:
        text = f"Not written yet, so ours: {waiting((r.lab, r.part) for r in left)}.\nNext: course watch {left[0].lab}"
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)
