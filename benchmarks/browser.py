"""The engine of the website under node: tokens per second, and how long the first token takes.

    python benchmarks/browser.py             # 1 minute
    python benchmarks/browser.py --quick     # writes nothing

docs/engine-js is plain JavaScript in one thread; node runs the same V8 as Chromium. The requests of a batch have random
prompts of 50 tokens. "First request" is what a reader meets, before V8 has compiled anything; the other columns are
medians of the requests after it. Goals: at least 60 tokens per second alone, first token within 0.6 s.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, machine, make_prompts, run_arm, save, table

PROMPT_LEN, VOCAB = 50, 4096
GOAL = {"tokens_per_s": 60, "first_token_s": 0.6}


def measure(batches: list[int], output_len: int, repeats: int) -> dict[str, Any]:
    """What `arm_browser.mjs` found. Raises RuntimeError in its words where it could not run."""
    prompts = {str(batch): make_prompts(batch, PROMPT_LEN, VOCAB, seed=batch) for batch in batches}
    job = {
        "model": str(ROOT / "models" / "pocket"), "prompts": prompts, "output_len": output_len, "repeats": repeats + 1
    }  # fmt: skip
    found = run_arm("arm_browser.mjs", job, threads=1, python=shutil.which("node") or "node")
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Medians without the first round, and that round's wait."""
    values = {key: statistics.median(one[key] for one in rounds[1:]) for key in rounds[0]}
    return values | {"first_request_s": rounds[0]["first_token_s"]}


def report(found: dict[str, Any], facts: dict[str, Any]) -> str:
    """The page."""
    rows = []
    for batch, rounds in found["batches"].items():
        one = middle(rounds)
        cold = one["first_request_s"] if batch == next(iter(found["batches"])) else None
        rows.append([int(batch), one["tokens_per_s"], f"{one['first_token_s']:.3f}", cold])
    head = [
        "requests at once",
        "output tokens/s, all together",
        "last first token after s",
        "the first request ever, s",
    ]
    products = [[int(n), one["blocks_of_four"], one["plain"]] for n, one in found["products"].items()]
    alone = middle(next(iter(found["batches"].values())))
    met = alone["tokens_per_s"] >= GOAL["tokens_per_s"] and alone["first_token_s"] <= GOAL["first_token_s"]
    return "\n\n".join([
        f"# The engine of the website, under node {found['node']}\n\n{facts}",
        f"pocket in float32, one thread, prompts of {PROMPT_LEN} tokens, at most 64 tokens a step. Weights are read "
        f"and turned into float32 in {found['load_s']:.2f} s.",
        table(head, rows),
        f"Goals for one request, {GOAL['tokens_per_s']} tokens/s and the first token within "
        f"{GOAL['first_token_s']} s: {'met' if met else 'missed'}.",
        "The products alone, in GFLOP/s: four rows of the weight at a time, and the plain double loop.",
        table(["rows of x", "blocks of four", "plain"], products),
    ])  # fmt: skip


def main() -> None:
    """Measure, write `results/browser.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    facts = machine()
    found = measure([1], 16, 1) if args.quick else measure([1, 2, 4], 100, 7)
    save("browser", {"machine": facts, "goal": GOAL, **found}, report(found, facts), keep=not args.quick)


if __name__ == "__main__":
    main()
