"""Measures what a step of pocket costs, and the two policies against each other: writes captured/step_cost.json.

    OMP_NUM_THREADS=1 python measure.py [--demo]

`--demo` writes nothing: it draws who sat where, from your `Served` (LAB_IMPL=solution: the reference's).
Times are processor time, so that a machine with other work does not count that in; what such work takes from the
caches it does count, hence the medians of runs in turn.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
POCKET = ROOT / "models" / "pocket"
SEATS, TURNS = 8, 5
NAMES = "abcdefghijklmnopqrstuvwxyzABCDEF"


def workload(impl: Any, seed: int = 0) -> list[Any]:
    """32 jobs: a quarter of them (by chance) with 64 output tokens, the others with 8."""
    lengths = np.where(np.random.default_rng(seed).random(32) < 0.25, 64, 8)
    return [impl.Job(NAMES[i], (5 + i, 6, 7, 8), int(n)) for i, n in enumerate(lengths)]


def chart(served: Any, seats: int) -> list[str]:
    """One line a seat: the letter of the job that sits there in each step, a dot where nobody does."""
    sitting: list[str | None] = [None] * seats
    lines = [""] * seats
    for step in served.steps:
        sitting = [name if name in step else None for name in sitting]
        for name in step:
            if name not in sitting:
                sitting[sitting.index(None)] = name
        lines = [line + (name or ".") for line, name in zip(lines, sitting, strict=True)]
    return lines


def run(impl: Any, engine: Any, policy: Any) -> tuple[Any, float, list[tuple[int, float]]]:
    """What was served, milliseconds in all, and (rows, milliseconds) of each step."""
    marks, step = [], engine.step

    def timed() -> Any:
        start = time.process_time()
        outputs = step()
        marks.append(1e3 * (time.process_time() - start))
        return outputs

    engine.step = timed
    try:
        served = impl.serve(engine, workload(impl), policy, SEATS)
    finally:
        engine.step = step
    return served, sum(marks), [(sum(s.values()), ms) for s, ms in zip(served.steps, marks, strict=True)]


def main() -> None:
    """Measure or draw."""
    sys.path.insert(0, str(ROOT))
    from course.labs import load
    from mini_vllm import LLMEngine

    impl = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    engine = LLMEngine(POCKET, enable_prefix_caching=False)
    policies = {"static": impl.static_policy, "continuous": impl.continuous_policy}
    if "--demo" in sys.argv:
        cost = json.loads((HERE / "captured" / "step_cost.json").read_text())
        turns = [{name: run(impl, engine, policy) for name, policy in policies.items()} for _ in range(TURNS + 1)]
        took = {name: float(np.median([turn[name][1] for turn in turns[1:]])) for name in policies}  # 0 warms up
        for name, (served, _, _) in turns[-1].items():
            print(f"{name}: {len(served.steps)} steps, {took[name]:.0f} ms, the median of {TURNS} runs")
            print("\n".join(chart(served, SEATS)) + "\n")
        rows = [impl.predict_steps(workload(impl), policy, SEATS) for policy in policies.values()]
        guess, measured = impl.gain(*rows, cost["fixed_ms"], cost["per_row_ms"]), took["static"] / took["continuous"]
        print(f"gain: predicted {guess:.2f}, measured {measured:.2f}")
        if measured > len(rows[0]) / len(rows[1]):
            print("That is more than the steps alone allow: the machine had other work. Run it again when it is idle.")
        return
    totals: dict[str, list[float]] = {name: [] for name in policies}
    steps: dict[int, list[float]] = {}
    for turn in range(41):
        for name, policy in policies.items():
            _, ms, each = run(impl, engine, policy)
            if turn:  # the first turn warms up
                totals[name].append(ms)
                for rows_of, took in each:
                    steps.setdefault(rows_of, []).append(took)
    table = {rows_of: float(np.median(took)) for rows_of, took in sorted(steps.items())}
    weight = np.sqrt([len(steps[n]) for n in table])
    matrix = np.stack([np.ones(len(table)), list(table)], axis=1) * weight[:, None]
    fixed, per_row = np.linalg.lstsq(matrix, np.array(list(table.values())) * weight, rcond=None)[0]
    result = {
        "fixed_ms": round(float(fixed), 3),
        "per_row_ms": round(float(per_row), 4),
        "ms_by_rows": {n: [round(ms, 3), len(steps[n])] for n, ms in table.items()},
        "total_ms": {n: {"min": round(min(t), 1), "median": round(float(np.median(t)), 1)} for n, t in totals.items()},
    }
    out = Path(os.environ.get("OUT", HERE / "captured"))
    (out / "step_cost.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
