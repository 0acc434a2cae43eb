"""Your judge at work: `python demo.py [RESULT.json …] [--report REPORT.md]` (LAB_IMPL=solution for the reference).

Without files it reads the captured runs: the sweep as a table with its knee, where the time of each arm goes, and what
may be said of each arm against the first. A file is a result.json of real_run.py; `--report` says what is missing.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

METRICS = ("served", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")


def show_sweep(lab: Any, runs: list[dict[str, Any]]) -> None:
    rows = sorted((lab.parse_result(run["bench"]) for run in runs), key=lambda row: row.rate)
    print("offered" + "".join(f"{name:>10}" for name in METRICS))
    for row in rows:
        print(f"{row.rate:7.1f}" + "".join(f"{getattr(row, name):10.1f}" for name in METRICS))
    if len({row.rate for row in rows}) > 1:
        print(f"the knee: {lab.find_knee(rows):g} requests per second")


def show_arm(lab: Any, name: str, runs: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    parts = [lab.where_time_goes(run["server"]) for run in runs]
    mean = {part: sum(each[part] for each in parts) / len(parts) for part in parts[0]}
    print(
        f"\n{name}, {len(runs)} runs at {runs[0]['rate']:g}/s: ",
        ", ".join(f"{p} {ms:.0f} ms" for p, ms in mean.items()),
    )
    for metric in METRICS if before is not runs else ():
        one, other = ([getattr(lab.parse_result(run["bench"]), metric) for run in each] for each in (before, runs))
        words = " ".join(f"{value:.1f}" for value in one), " ".join(f"{value:.1f}" for value in other)
        print(f"  {metric:9} {words[0]:24} -> {words[1]:24} {lab.compare(one, other)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    lab: Any = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    if args.report:
        print(*(lab.report_problems(args.report.read_text(encoding="utf-8")) or ["nothing is missing"]), sep="\n")
        return
    names = ("base", "threshold", "seats", "blocks")
    files = args.results or [HERE / "captured" / f"cpu-{name}.json.xz" for name in names]
    raw = [lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes() for file in files]
    found = [json.loads(text) for text in raw]
    show_sweep(lab, found[0]["runs"])
    rate = found[-1]["runs"][0]["rate"]
    before = [run for run in found[0]["runs"] if run["rate"] == rate]
    for each in found:
        show_arm(lab, each["arm"], before if each is found[0] else each["runs"], before)


if __name__ == "__main__":
    main()
