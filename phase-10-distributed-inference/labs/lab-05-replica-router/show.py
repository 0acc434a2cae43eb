"""The routers side by side, yours, or with LAB_IMPL=solution the reference. Given material."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

NAMES = ("RoundRobin", "LeastLoaded", "Sticky", "PrefixAware")
BARS = " ▁▂▃▄▅▆▇█"


def show(lab: ModuleType, skew: float = 1.5, per_tick: float = 1.5) -> str:
    """A table, and for each router a strip per replica: how many wait there, over time."""
    sim = load(HERE / "sim.py")
    requests, rows, strips = sim.workload(skew, per_tick=per_tick), [], []
    for name in NAMES:
        try:
            found = sim.simulate(getattr(lab, name)(4), requests)
        except NotImplementedError as error:
            rows.append(f"{name:12} not written: {error}")
            continue
        rows.append(
            f"{name:12} {found['hit_rate']:8.2f} {found['mean']:10.2f} {found['p95']:6} {found['ticks']:10} "
            f"{found['imbalance']:14.2f}"
        )
        worst = max(max(row) for row in found["queues"])
        step = -(-len(found["queues"]) // 60)
        strips.append(f"{name}: at most {worst} wait in one queue")
        for replica in range(4):
            over_time = [
                max(row[replica] for row in found["queues"][at : at + step]) for at in range(0, found["ticks"], step)
            ]
            strips.append(f"  {replica} " + "".join(BARS[min(8, -(-waiting // 8))] for waiting in over_time))
    head = "router       hit rate  mean TTFT    p95   all done   busiest/mean"
    return "\n".join([head, *rows, "", *strips])


if __name__ == "__main__":
    print(show(load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")))
