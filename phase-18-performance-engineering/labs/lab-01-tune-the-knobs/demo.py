"""Your search at work on pocket: `python demo.py` (LAB_IMPL=solution for the reference).

It times a few dozen steps of pocket on this machine, draws your line through them, turns a limit in milliseconds into
one in tokens, lets your search choose, and then serves the workload twice: with the settings as they are, and with
yours. Each line of bars is one step, as long as it took.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # steps this small gain nothing by threads, and vary more

from course.labs import load  # noqa: E402
from mini_vllm import LLMEngine, SamplingParams  # noqa: E402

WORKLOAD = [(0, 8, 14), (3, 400, 2), (3, 400, 2)]
GRID = (32, 64, 128, 256, 2048), (0, 16, 32, 64)


def serve(arrivals: list[tuple[int, int, int]], **knobs: int) -> list[tuple[int, float]]:
    """(tokens, milliseconds) of each step of pocket."""
    engine = LLMEngine(str(ROOT / "models" / "pocket"), num_blocks=256, enable_prefix_caching=False, **knobs)
    rng, steps, coming, tick = random.Random(0), [], list(arrivals), 0
    while coming or engine.has_unfinished_requests():
        while coming and coming[0][0] <= tick:
            _, length, max_tokens = coming.pop(0)
            prompt = {"prompt_token_ids": [rng.randrange(300, 4000) for _ in range(length)]}
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(f"{tick}-{len(coming)}", prompt, params)
        before, start = engine.stats.num_scheduled_tokens, time.perf_counter()
        engine.step()
        ms = 1e3 * (time.perf_counter() - start)
        if tokens := engine.stats.num_scheduled_tokens - before:
            steps.append((tokens, ms))
        tick += 1
    return steps


def draw(name: str, steps: list[tuple[int, float]], slo_ms: float) -> None:
    print(f"\n{name}")
    for tokens, ms in steps:
        bar = "#" * min(round(ms / slo_ms * 20), 72)
        print(f"  {tokens:4} tokens {ms:7.1f} ms  {bar}{'  over' if ms > slo_ms else ''}")


def main() -> None:
    lab: Any = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    serve([(0, 8, 2)])  # whatever is slow once
    rng = random.Random(1)
    probe = [(6 * i, rng.randrange(8, 300), rng.randrange(3, 7)) for i in range(12)]
    fixed, per_token = lab.step_cost(serve(probe))
    slo_ms = round(fixed + 80 * per_token, 1)
    limit = lab.largest_step(slo_ms, fixed, per_token)
    print(f"a step of pocket here: {fixed:.2f} ms + {per_token:.3f} ms a token; {slo_ms} ms allow {limit} tokens")
    pair, metrics = lab.grid_search(WORKLOAD, *GRID, limit, num_blocks=512, block_size=4, max_num_seqs=8)
    draw("as it is", serve(WORKLOAD), slo_ms)
    draw(f"yours: {pair}, {metrics.total_steps} steps foretold", serve(WORKLOAD, **pair, max_num_seqs=8), slo_ms)


if __name__ == "__main__":
    main()
