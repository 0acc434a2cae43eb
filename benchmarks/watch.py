"""Time from a save to the verdict of `course watch`, lab by lab.

    python benchmarks/watch.py               # 4 minutes on two cores
    python benchmarks/watch.py 00 02-01      # only these
    python benchmarks/watch.py --quick       # one lab of each phase, one save; writes nothing

Each lab is copied, its solution stands as starter.py, and one more test fails: so every save runs all tests (or, where
they are slow, the red one first and then what fits). After the last save it passes. The next save comes when the next
worker is ready, as it is for a learner who types. Goal: a red verdict within one second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, limit_threads, machine, save, table
from course.labs import Lab, find_labs, lab_folders, lab_of
from course.loop import watch

LAST = "\n\ndef test_the_benchmark_goes_on(impl):\n    assert not hasattr(impl, 'RED')\n"
GOAL = 1.0  # seconds


def make_home(home: Path, lab: Lab) -> Path:
    """A folder like this repository, of links, in which one lab is a copy; returns the copy."""
    target = home / lab.phase / "labs" / lab.slug
    target.mkdir(parents=True)
    steps = [(ROOT, home), (lab.folder.parents[1], target.parents[1]), (lab.folder.parent, target.parent)]
    for source, folder in steps:
        for path in source.iterdir():
            if not path.name.startswith((".", "phase-")) and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    for path in lab.folder.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
        elif path.name != "__pycache__":
            (target / path.name).symlink_to(path)
    (target / "starter.py").write_bytes((lab.folder / "solution.py").read_bytes())
    (target / "test_lab.py").write_text((target / "test_lab.py").read_text(encoding="utf-8") + LAST, encoding="utf-8")
    return target


def wait_until_ready(started: float) -> None:
    """Returns when the worker waits for its word: asleep, and no processor time for a tenth of a second."""
    last, since = -1, time.monotonic()
    while time.monotonic() - started < 30:
        now = _ticks()
        if now != last:
            last, since = now, time.monotonic()
        elif now > 0 and time.monotonic() - since > 0.1:
            return
        time.sleep(0.02)


def _ticks() -> int:
    """Processor time of this process's children that live, in clock ticks; 0 where there is none."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
    return total


def measure(lab: Lab, saves: int) -> dict[str, Any]:
    """Seconds from the end of a write of starter.py to the watcher's verdict: ``saves`` times red, once green."""
    with tempfile.TemporaryDirectory() as temp:
        folder = make_home(Path(temp), lab)
        starter, source = folder / "starter.py", (folder / "starter.py").read_text(encoding="utf-8")
        starter.write_text(f"{source}\nRED = True\n", encoding="utf-8")
        written: list[float] = []
        found: list[float] = []
        green: list[float] = []

        def type_and_save() -> None:
            wait_until_ready(time.monotonic())
            red = f"RED = {len(written)}\n" if len(written) < saves else ""
            starter.write_text(f"{source}\n{red}", encoding="utf-8")
            written.append(time.perf_counter())

        def note(text: str) -> None:
            if text.startswith(("red", "all pass")) and written:
                (found if text.startswith("red") else green).append(time.perf_counter() - written[-1])
            if text.startswith("waiting"):
                threading.Thread(target=type_and_save, daemon=True).start()

        watch.watch(watch.Saves(folder), note, runs=saves + 2)
    imports = [m for m in lab.allowed_imports if m.partition(".")[0] in ("torch", "triton")]
    return {
        "lab": lab.name, "saves": len(found), "median_s": statistics.median(found), "worst_s": max(found),
        "all_pass_s": green[0] if green else None, "imports": imports,
    }  # fmt: skip


def report(found: Sequence[dict[str, Any]], skipped: Sequence[str], facts: dict[str, Any]) -> str:
    """The page: numpy labs and labs of torch apart."""
    parts = [f"# `course watch`: from a save to the verdict\n\n{facts}"]
    for title, group in (
        ("numpy", [row for row in found if not row["imports"]]),
        ("torch, Triton", [row for row in found if row["imports"]]),
    ):
        if group:
            rows = [
                [r["lab"], r["saves"], f"{r['median_s']:.2f}", f"{r['worst_s']:.2f}", r["all_pass_s"]] for r in group
            ]
            head = ["lab", "saves", "red: median s", "worst s", "all pass s"]
            parts.append(f"## Labs with {title}\n\n" + table(head, rows))
            slow = [row["lab"] for row in group if row["median_s"] > GOAL]
            middle = statistics.median(row["median_s"] for row in group)
            parts.append(
                f"Median of the labs {middle:.2f} s; over {GOAL:g} s: {', '.join(slow) or 'none'} of {len(group)}."
            )
    if any(row["all_pass_s"] is None for row in found):
        parts.append('Where "all pass" is empty, one save was heard as two, and the run before it took its place.')
    if skipped:
        parts.append(f"Not measured, for want of a package: {', '.join(skipped)}.")
    return "\n\n".join(parts)


def main() -> None:
    """Measure, write `results/watch.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labs", nargs="*", help="only these labs or phases")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if not Path("/proc/self/task").is_dir():
        parser.error("it reads /proc, so it runs on Linux")
    os.environ.update(limit_threads(1, {}))
    everything = [lab for folder in lab_folders() if (lab := lab_of(folder))]
    labs = [lab for text in args.labs for lab in find_labs(text)] or everything
    if args.quick:
        labs, args.saves = list({lab.phase: lab for lab in reversed(labs)}.values())[::-1], 1
    facts = machine()
    skipped = [lab.name for lab in labs if lab.missing_modules]
    found = [measure(lab, args.saves) for lab in labs if not lab.missing_modules]
    keep = not (args.quick or args.labs)
    save("watch", {"machine": facts, "goal_s": GOAL, "rows": found}, report(found, skipped, facts), keep=keep)


if __name__ == "__main__":
    main()
