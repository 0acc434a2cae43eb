"""Time of one scheduling step, ours beside real vLLM's: `schedule()` + `update_from_output()`, no model.

    python benchmarks/scheduler.py --vllm-python .venv-vllm/bin/python       # two minutes on one core

Goals: at most 0.33 of the real one's time; linear in the running requests; no growth with the pool or the queue.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.progress import track

from benchmarks.common import ROOT, machine, save, table
from benchmarks.turns import Arm

ROUNDS = 5
"""The arms take turns in each: a machine is not as fast in every minute."""

BASE = {"running": 64, "queued": 0, "num_blocks": 40_000, "caching": True, "steps": 200}
VARY = [{"running": n, "caching": caching} for caching in (True, False) for n in (8, 64, 256, 1024)]
VARY += [{"num_blocks": n} for n in (2_000, 200_000, 1_000_000)] + [{"queued": n} for n in (10, 1000)]


def run(settings: list[dict[str, Any]], pythons: dict[str, str], rounds: int) -> dict[str, list[list[float]]]:
    """Microseconds a step of each arm: for every setting, one median a round. The arms take turns in each round."""
    arms = {name: Arm("arm_scheduler.py", name, threads=1, python=python) for name, python in pythons.items()}
    times: dict[str, list[list[float]]] = {name: [[] for _ in settings] for name in arms}
    try:
        for turn in track([*range(rounds)] * len(settings), "rounds", console=Console(stderr=True)):
            row = min(range(len(settings)), key=lambda i: len(times["mini"][i]))
            for name in sorted(arms, reverse=turn % 2 == 1):
                times[name][row].append(arms[name].ask("measure", setting=settings[row]))
    finally:
        for arm in arms.values():
            arm.close()
    return times


def main() -> None:
    """Both arms over all settings, `results/scheduler.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", default=str(ROOT / ".venv-vllm" / "bin" / "python"))
    parser.add_argument("--name", default="scheduler")
    parser.add_argument("--quick", action="store_true", help="20 steps each, nothing written")
    args = parser.parse_args()
    settings = [{**BASE, **change, **({"steps": 20} if args.quick else {})} for change in VARY]
    pythons = {"mini": sys.executable}
    if Path(args.vllm_python).is_file():
        pythons["real"] = args.vllm_python
    times = run(settings, pythons, rounds=1 if args.quick else ROUNDS)
    rows = []
    for i, setting in enumerate(settings):
        shown = [setting[key] for key in ("running", "queued", "num_blocks", "caching")]
        ours = median(times["mini"][i])
        theirs = median(times["real"][i]) if "real" in times else None
        ratio = (
            None if theirs is None else median(a / b for a, b in zip(times["mini"][i], times["real"][i], strict=True))
        )
        rows.append([*shown, ours, ours / setting["running"], theirs, ratio])
    head = ["running", "queued", "blocks", "prefix caching", "mini µs/step", "mini µs/request", "real µs/step", "ratio"]
    note = "real: vLLM 0.22.1" if "real" in times else f"real: left out, {args.vllm_python} is missing"
    how = f"medians of {len(times['mini'][0])} rounds in turns, {settings[0]['steps']} decode steps each"
    text = f"# One scheduling step\n\n{table(head, rows)}\n\n- {note}\n- {how}; ratios: medians of each round's"
    save(
        args.name,
        {"machine": machine(), "settings": settings, "us": times, "vllm": "0.22.1"},
        text,
        keep=not args.quick,
    )


if __name__ == "__main__":
    main()
