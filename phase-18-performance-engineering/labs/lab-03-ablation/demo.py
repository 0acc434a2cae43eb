"""Your table: `python demo.py` (LAB_IMPL=solution for the reference); with `--live` it measures your machine first.

It draws the way from the bare engine to the whole one in two orders, the same heights at both ends, and then your
shares beside what each technique is worth alone and last.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402


def live(lab: Any) -> dict[tuple[int, ...], float]:
    """Your `run_arms` on pocket."""
    measure = load(HERE / "measure.py")
    techniques = [lab.Technique(name, *pair) for name, pair in measure.TECHNIQUES.items()]

    def run(settings: dict[str, Any]) -> tuple[float, Any]:
        row = measure.run_once(str(HERE.parents[2] / "models" / "pocket"), settings, measure.prompts())
        return row["seconds"], row["output"]

    return lab.run_arms(run, techniques)


def waterfall(lab: Any, arms: dict[tuple[int, ...], float], names: list[str], order: list[str]) -> None:
    seconds = arms[(0,) * len(names)]
    scale, gains = 60 / seconds, lab.along(arms, names, order)
    print(f"\n{'none of them':14} {seconds:6.3f} s  {'#' * round(seconds * scale)}")
    for name in order:
        after = seconds / gains[name]
        bar = "#" * round(after * scale) + "-" * (round(seconds * scale) - round(after * scale))
        print(f"+ {name:12} {after:6.3f} s  {bar}  {gains[name]:.2f} times")
        seconds = after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true")
    args = parser.parse_args()
    lab = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    names = json.loads((HERE / "captured" / "arms.json").read_text(encoding="utf-8"))["techniques"]
    arms = live(lab) if args.live else load(HERE / "test_lab.py").captured()
    for order in (["batch", "attention", "prefix"], ["prefix", "batch", "attention"]):
        waterfall(lab, arms, names, order)
    ways = {"alone": lab.one_at_a_time, "last": lab.leave_one_out, "yours": lab.attribute}
    print(f"\n{'':8}" + "".join(f"{name:>12}" for name in names) + f"{'product':>12}")
    for way, rule in ways.items():
        gains = rule(arms, names)
        print(f"{way:8}" + "".join(f"{gains[name]:12.2f}" for name in names) + f"{math.prod(gains.values()):12.2f}")


if __name__ == "__main__":
    main()
