"""How well the simulator predicts: fitted to the steps of some workloads, judged on others, which it has not seen.

    python -m benchmarks.simulator            # about ten minutes on two cores
    python -m benchmarks.simulator --quick    # a minute, nothing written

The simulator is the engine's own scheduler on the clock of a cost model (`mini_vllm/benchmarks/simulator.py`). The
goal: throughput within 10 %, and p99 within the spread of three repeats of the engine itself. Held-out workloads have
other lengths, rates, prefixes and settings of the engine than those of the fit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import limit_threads, machine, save, table  # noqa: E402

VOCAB = range(300, 4000)
METRICS = ("ttft", "itl")
ALLOWED = 0.10


@dataclass(frozen=True)
class Workload:
    """Requests of random tokens. rate: a second, 0: all at once. shared: tokens that all prompts begin with.

    prompt, output: (fewest, most). engine: settings that differ from the defaults.
    """

    name: str
    count: int
    rate: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared: int = 0
    engine: dict[str, Any] = field(default_factory=dict)

    def requests(self, seed: int) -> list[Any]:
        """The same for the same seed."""
        import numpy as np

        from mini_vllm import SimRequest

        chance = np.random.default_rng(seed)
        at = np.cumsum(chance.exponential(1 / self.rate, self.count)) if self.rate else np.zeros(self.count)
        head = self._ids(chance, self.shared)
        return [
            SimRequest(float(t), head + self._ids(chance, self._length(chance, self.prompt)),
                       self._length(chance, self.output))
            for t in at
        ]  # fmt: skip

    def _ids(self, chance: Any, count: int) -> list[int]:
        return [int(i) for i in chance.integers(VOCAB.start, VOCAB.stop, count)]

    def _length(self, chance: Any, ends: tuple[int, int]) -> int:
        return int(chance.integers(ends[0], ends[1] + 1))


FIT = [
    Workload("decode at every batch", 32, 0, (8, 16), (8, 96)),
    Workload("prompts of every length", 24, 0, (8, 700), (1, 4)),
    Workload("chunks", 12, 0, (300, 800), (16, 32), engine={"max_num_batched_tokens": 128}),
    Workload("a stream of middling ones", 48, 12, (32, 256), (16, 64)),
    Workload("long ones alone", 16, 3, (200, 900), (2, 8)),
    Workload("behind a prefix", 24, 10, (8, 64), (8, 32), shared=256),
]
HELD_OUT = [
    Workload("chat, calm", 48, 6, (24, 160), (24, 80)),
    Workload("chat, near the knee", 64, 14, (24, 160), (24, 80)),
    Workload("documents", 16, 2, (500, 900), (8, 24)),
    Workload("documents in chunks of 96", 16, 2, (500, 900), (8, 24), engine={"max_num_batched_tokens": 96}),
    Workload("a shared system prompt", 48, 10, (16, 80), (16, 48), shared=384),
    Workload("batch job, eight seats", 40, 0, (32, 128), (32, 64), engine={"max_num_seqs": 8}),
]


def smaller(workload: Workload) -> Workload:
    """A quarter of the requests, for `--quick`."""
    return Workload(**{**vars(workload), "count": max(6, workload.count // 4)})


def engine_of(model: str, workload: Workload) -> Any:
    """A fresh engine with the workload's settings."""
    from mini_vllm import LLMEngine

    return LLMEngine(model, **{"num_blocks": 1024, **workload.engine})


def fit(model: str, workloads: Sequence[Workload], rounds: int, clock: str = "wall") -> tuple[Any, int]:
    """(cost model, steps that it was fitted to): every workload once a round, in turns, with other tokens each time."""
    from mini_vllm import CostModel, replay

    engines = [engine_of(model, workload) for workload in workloads]
    for engine, workload in zip(engines, workloads, strict=True):
        replay(engine, workload.requests(999)[:4], clock)  # whatever is slow once
    steps = []
    for round_ in range(rounds):
        for number, (engine, workload) in enumerate(zip(engines, workloads, strict=True)):
            steps += replay(engine, workload.requests(100 * number + round_), clock).steps
    return CostModel.fit(steps), len(steps)


def judge(model: str, cost: Any, workload: Workload, repeats: int, seed: int, clock: str = "wall") -> dict[str, Any]:
    """The engine's repeats and the simulator's runs of one workload, side by side."""
    from mini_vllm import Simulator, replay

    engine, requests = engine_of(model, workload), workload.requests(seed)
    replay(engine, requests[:4], clock)
    real = [_numbers(replay(engine, requests, clock)) for _ in range(repeats)]
    simulator = Simulator.like(engine, cost)
    runs = [_numbers(simulator.run(requests, seed=run)) for run in range(9)]
    return {
        "workload": workload.name,
        "real": real,
        "simulated": _middle(runs),
        "calm": _numbers(simulator.run(requests)),
    }


def _numbers(served: Any) -> dict[str, float]:
    metrics = served.metrics((50.0, 99.0))
    found = {"tokens_per_s": metrics.output_throughput, "steps": float(len(served.steps))}
    for name in METRICS:
        found[f"median_{name}_ms"] = metrics.times[name].median
        found[f"p99_{name}_ms"] = metrics.times[name].percentiles[1][1]
    return found


def _middle(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    """How far off: the share for throughput; for p99 the bounds of the repeats, and whether the prediction is within.

    A bound is widened by half of the distance between the repeats: three samples do not reach the ends of their spread.
    """
    real, said = found["real"], found["simulated"]
    rate = statistics.median(run["tokens_per_s"] for run in real)
    result: dict[str, Any] = {"throughput_off": said["tokens_per_s"] / rate - 1}
    result["throughput_ok"] = abs(result["throughput_off"]) <= ALLOWED
    for name in METRICS:
        values = [run[f"p99_{name}_ms"] for run in real]
        low, high = min(values), max(values)
        result[f"p99_{name}_bounds"] = [low, high]
        result[f"p99_{name}_ok"] = low <= said[f"p99_{name}_ms"] <= high
        margin = (high - low) / 2
        result[f"p99_{name}_near"] = low - margin <= said[f"p99_{name}_ms"] <= high + margin
    return result


def report(found: Sequence[dict[str, Any]], num_steps: int, facts: dict[str, Any], clock: str = "wall") -> str:
    """The table, and how many of its cells keep the goal."""
    rows, kept = [], [0, 0]
    for each in found:
        result, said = verdict(each), each["simulated"]
        rate = statistics.median(run["tokens_per_s"] for run in each["real"])
        row = [each["workload"], rate, said["tokens_per_s"], f"{result['throughput_off']:+.1%}"]
        kept[0] += result["throughput_ok"]
        for name in METRICS:
            low, high = result[f"p99_{name}_bounds"]
            word = "yes" if result[f"p99_{name}_ok"] else "nearly" if result[f"p99_{name}_near"] else "no"
            row += [f"{low:.0f} to {high:.0f}", said[f"p99_{name}_ms"], word]
            kept[1] += result[f"p99_{name}_ok"]
        rows.append(row)
    header = ["workload", "tokens/s", "predicted", "off", "p99 TTFT, ms, repeats", "predicted", "within",
              "p99 ITL, ms, repeats", "predicted", "within"]  # fmt: skip
    count = len(found)
    return (
        f"# A simulator beside the engine\n\n{facts}\n\nPocket, {clock} time; the cost model is fitted to {num_steps} "
        f"steps of {len(FIT)} other workloads. Repeats of the engine: {len(found[0]['real'])}; of the simulator 9 with "
        f"disturbances as measured, medians.\n\n{table(header, rows)}\n\nThroughput within {ALLOWED:.0%}: {kept[0]} of "
        f"{count}. p99 within the repeats' spread: {kept[1]} of {2 * count}; nearly: within half of the spread more."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, judge, `results/simulator.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "pocket"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="of the workloads that are fitted to")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests, one round, nothing written")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: where others compute, too")
    args = parser.parse_args(argv)
    os.environ.update(limit_threads(args.threads, {}))
    facts = machine()
    fits, held_out = (FIT, HELD_OUT) if not args.quick else ([smaller(w) for w in FIT], [smaller(w) for w in HELD_OUT])
    cost, num_steps = fit(args.model, fits, 1 if args.quick else args.rounds, args.clock)
    found = [
        judge(args.model, cost, workload, args.repeats, 7000 + i, args.clock) for i, workload in enumerate(held_out)
    ]
    result = {
        "machine": facts, "threads": args.threads, "clock": args.clock, "steps": num_steps, "weights": cost.weights,
        "found": found, "verdicts": [verdict(each) for each in found],
    }  # fmt: skip
    save("simulator", result, report(found, num_steps, facts, args.clock), keep=not args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
