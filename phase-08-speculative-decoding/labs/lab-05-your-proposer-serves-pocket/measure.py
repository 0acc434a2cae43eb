"""What drafts do for pocket: `python measure.py` writes captured/served.json (about two minutes).

First what a step costs with 1 to 8 rows: drafts that are never right. Then four kinds of prompts, each answered without
drafts and with, in turns: "n-gram" is the reference, which copies from the request's own text; "memory" has the answers
to the prompts before as well. A new proposer for each round, so that no round knows its own answers.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from course.captures import cpu_name, write_provenance  # noqa: E402
from course.labs import load  # noqa: E402

HERE = Path(__file__).resolve().parent
REPEATS = 7


def main() -> int:
    """Measure and write."""
    given, solution = load(HERE / "given.py"), load(HERE / "solution.py")

    class Memory(solution.Proposer):  # type: ignore[misc,name-defined]
        """The reference first; where it is silent, what followed the last three tokens in a text that has ended."""

        def __init__(self) -> None:
            self.after: dict[tuple[int, ...], list[int]] = {}

        def propose(self, token_ids: list[int], k: int) -> list[int]:
            return super().propose(token_ids, k) or self.after.get(tuple(token_ids[-3:]), [])[:k]

        def finished(self, token_ids: list[int]) -> None:
            for at in range(3, len(token_ids)):
                self.after[tuple(token_ids[at - 3 : at])] = token_ids[at : at + 16]

    proposers = {"n-gram": solution.Proposer, "memory": Memory}
    row_cost = given.measure_row_cost(solution)
    plain, arms = given.engine(), {name: given.engine(4) for name in proposers}
    found: dict[str, Any] = {}
    for kind in given.KINDS:
        asked = given.prompts(kind)
        ratios: dict[str, list[float]] = {name: [] for name in arms}
        made: dict[str, Any] = {}
        for _ in range(REPEATS):
            wanted = given.serve(plain, asked)
            for name, llm in arms.items():
                own = SimpleNamespace(Proposer=proposers[name], verify_greedy=solution.verify_greedy)
                given.install(llm, own)
                made[name] = given.serve(llm, asked)
                assert made[name].tokens == wanted.tokens, (kind, name)
                ratios[name].append(wanted.seconds / made[name].seconds)
        for name, done in made.items():
            drafted, emitted = (sum(column) for column in zip(*done.cycles, strict=True))
            free = {rows: 1.0 for rows in row_cost}
            found[f"{kind}, {name}"] = {
                "drafted": drafted,
                "accepted": emitted - len(done.cycles),
                "tokens_per_step": round(emitted / len(done.cycles), 2),
                "rows_free": round(solution.predict_speedup(done.cycles, free), 2),
                "predicted": round(solution.predict_speedup(done.cycles, row_cost), 2),
                "measured": round(statistics.median(ratios[name][1:]), 2),
            }
            print(f"{kind}, {name}", found[f"{kind}, {name}"], flush=True)
    record = {"row_cost": {str(rows): round(ms, 3) for rows, ms in row_cost.items()}, "arms": found}
    out = HERE / "captured"
    (out / "served.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    load_average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    priority = f"niceness {os.nice(0)}, load average at the end {load_average}"
    write_provenance(
        out,
        "cpu",
        {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores; one BLAS thread; {priority}",
            "cpu": cpu_name(),
            "device": "cpu",
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "versions": {"numpy": np.__version__, "python": platform.python_version()},
            "model": "models/pocket, float32",
            "commands": {"served.json": "OMP_NUM_THREADS=1 python measure.py"},
            "edited": "no",
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
