"""Cost as work grows: prefill against the length of the prompt, and a step against the length of the queue.

    python benchmarks/scaling.py            # two minutes on two cores
    python benchmarks/scaling.py --quick

Prefill should be linear in tokens up to the quadratic term of attention, and a queue of 1,000 waiting requests should
cost no more per step than one of 10.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import SHAPES, limit_threads, machine, save, table


def prefill_times(folder: Path, lengths: list[int], repeats: int) -> list[list[Any]]:
    """Tokens, milliseconds to the first token, microseconds per token."""
    from benchmarks.common import make_prompts, median_time
    from mini_vllm import LLM, SamplingParams

    llm = LLM(str(folder), max_num_seqs=8, max_num_batched_tokens=2048, enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    rows = []
    for length in lengths:
        [prompt] = make_prompts(1, length, 4096, length)
        asked = [{"prompt_token_ids": prompt}]
        seconds = median_time(partial(llm.generate, asked, params, use_tqdm=False), repeats)
        rows.append([length, seconds * 1e3, seconds / length * 1e6])
    return rows


def fit(rows: list[list[Any]]) -> tuple[float, float, float]:
    """Least squares of milliseconds = a + b n + c n^2; the share of the quadratic term in the longest prompt."""
    import numpy as np

    n, ms = np.array([r[0] for r in rows], float), np.array([r[1] for r in rows])
    (c, b, _), longest = np.polyfit(n, ms, 2), n[-1]
    return b * 1e3, c * 1e6, c * longest**2 / (b * longest + c * longest**2)


def queue_times(folder: Path, queues: list[int], steps: int) -> list[list[Any]]:
    """Waiting requests, milliseconds per decode step, milliseconds outside the model; eight requests run."""
    from benchmarks.instrument import StepTimer
    from mini_vllm import LLM

    rows = []
    for waiting in queues:
        timer = StepTimer(LLM(str(folder), max_num_seqs=8, num_blocks=2048))
        timer.add(8 + waiting, 64, steps + 60)
        timer.run_until_decoding(8)
        for _ in range(5):
            timer.step()
        total, outside = timer.decode(steps)
        rows.append([waiting, total * 1e3, outside * 1e3])
    return rows


def main() -> None:
    """Write `results/scaling.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--name", default="scaling")
    args = parser.parse_args()
    os.environ.update(limit_threads(args.threads, {}))
    lengths, repeats, steps = [128, 256, 512, 1024, 2048, 4096], 3, 40
    if args.quick:
        lengths, repeats, steps = [128, 256, 512, 1024], 1, 8
    with tempfile.TemporaryDirectory() as temporary:
        from mini_vllm import save_random_checkpoint

        config = {**SHAPES["pocket-704"], "max_position_embeddings": 8192}
        folder = save_random_checkpoint(Path(temporary) / "long", config, std=0.03)
        prefill, queue = prefill_times(folder, lengths, repeats), queue_times(folder, [0, 10, 100, 1000], steps)
    linear, quadratic, share = fit(prefill)
    facts = machine()
    markdown = "\n\n".join([
        f"# Cost as work grows\n\n{facts}\n\npocket-704 with random weights, {args.threads} threads, medians.",
        "## Prefill\n\n" + table(["prompt tokens", "ms", "µs per token"], prefill),
        f"Fit: {linear:.1f} µs per token and {quadratic:.2f} ns per pair of tokens; the quadratic term is {share:.0%} "
        "of the longest prompt.",
        "## Queue\n\n" + table(["waiting requests", "ms per step", "ms outside the model"], queue),
    ])  # fmt: skip
    result = {
        "machine": facts,
        "threads": args.threads,
        "prefill": prefill,
        "fit_us_ns": [linear, quadratic],
        "queue": queue,
    }
    save(args.name, result, markdown)


if __name__ == "__main__":
    main()
