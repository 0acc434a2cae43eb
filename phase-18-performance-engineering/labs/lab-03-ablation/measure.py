"""Makes `captured/arms.json`: pocket in every combination of three techniques, in turns.

    python phase-18-performance-engineering/labs/lab-03-ablation/measure.py

Twelve requests share a beginning of 256 tokens; each has an end of its own and asks for 24 tokens. An arm is a fresh
engine; what is measured is the processor time of the process while it answers. The arms take turns, so that each of
them sees each minute of the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from mini_vllm import LLM, SamplingParams  # noqa: E402

TECHNIQUES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "prefix": ({"enable_prefix_caching": True}, {"enable_prefix_caching": False}),
    "batch": ({"max_num_seqs": 12}, {"max_num_seqs": 1}),
    "attention": ({"attention_backend": "paged_gather"}, {"attention_backend": "paged_online"}),
}
NUM_REQUESTS, SHARED, OUTPUT = 12, 256, 24


def prompts(vocab: range = range(300, 4000)) -> list[dict[str, list[int]]]:
    """Twelve prompts with a common beginning; lengths and tokens by a fixed seed."""
    rng = np.random.default_rng(0)
    shared = rng.integers(vocab.start, vocab.stop, SHARED).tolist()
    lengths = rng.integers(16, 97, NUM_REQUESTS)
    ends = [rng.integers(vocab.start, vocab.stop, length).tolist() for length in lengths]
    return [{"prompt_token_ids": shared + end} for end in ends]


def run_once(model: Any, options: dict[str, Any], asked: list[dict[str, list[int]]]) -> dict[str, Any]:
    """One engine, one call: processor seconds, counters, and the tokens it gave."""
    llm = LLM(model, max_model_len=512, **options)
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    start = time.process_time()
    outputs = llm.generate(asked, params, use_tqdm=False)
    seconds, stats = time.process_time() - start, llm.llm_engine.stats
    tokens = [list(each.outputs[0].token_ids) for each in outputs]
    return {"seconds": seconds, "steps": stats.num_steps, "tokens": stats.num_scheduled_tokens, "output": tokens}


def options_of(key: tuple[int, ...]) -> dict[str, Any]:
    """Settings of an arm; key i is 1 where technique i is on."""
    pairs = zip(TECHNIQUES.values(), key, strict=True)
    return {name: value for (on, off), bit in pairs for name, value in (on if bit else off).items()}


def measure(model: str, repeats: int) -> list[dict[str, Any]]:
    """All eight arms, `repeats` times in turns; a row per run. Raises where an arm gives other tokens."""
    keys, rows, wanted = list(itertools.product((1, 0), repeat=len(TECHNIQUES))), [], None
    run_once(model, options_of(keys[0]), prompts())  # whatever is slow once
    for repeat in range(repeats):
        for key in keys:
            found = run_once(model, options_of(key), prompts())
            output = found.pop("output")
            wanted = wanted or output
            if output != wanted:
                raise SystemExit(f"arm {key} gave other tokens")
            rows.append({"arm": "".join(map(str, key)), "repeat": repeat, **found})
            rows[-1]["seconds"] = round(rows[-1]["seconds"], 4)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "pocket"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a file for the rows, as JSON; without it they are only shown")
    args = parser.parse_args()
    rows = measure(args.model, args.repeats)
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        seconds = sorted(row["seconds"] for row in mine)
        print(f"{arm}  {median(seconds):7.3f} s  ({seconds[0]:.3f} to {seconds[-1]:.3f})  {mine[0]['steps']:4} steps"
              f"  {mine[0]['tokens']:5} tokens")  # fmt: skip
    if args.out:
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        args.out.write_text(f'{{\n "techniques": {json.dumps(list(TECHNIQUES))},\n "rows": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
