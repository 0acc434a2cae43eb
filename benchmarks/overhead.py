"""Time of a decode step outside the model: scheduling, inputs, attention plan, sampling, bookkeeping.

    python benchmarks/overhead.py            # a minute on two cores
    python benchmarks/overhead.py --quick    # ten seconds

Goals: at batch 32 at most 15 % of the step; linear in the batch; flat in the length of the context and in the number of
blocks of the pool.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import SHAPES, checkpoint, limit_threads, machine, save, table


def measure(folder: Path, batch: int, context: int, num_blocks: int, steps: int) -> dict[str, Any]:
    """One engine, one batch of equal requests, medians over decode steps."""
    from benchmarks.instrument import StepTimer
    from mini_vllm import LLM

    llm = LLM(str(folder), num_blocks=num_blocks, max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=1024)
    timer = StepTimer(llm)
    timer.add(batch, context, steps + 80)
    timer.run_until_decoding(batch)
    for _ in range(5):
        timer.step()
    total, outside = timer.decode(steps)
    return {
        "batch": batch, "context": context, "num_blocks": num_blocks, "step_ms": total * 1e3,
        "outside_ms": outside * 1e3, "share": outside / total,
    }  # fmt: skip


def main() -> None:
    """Vary one thing at a time, write `results/overhead.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[s for s in SHAPES if s.startswith("pocket")], default="pocket")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--name", default="overhead")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.steps = 8
    os.environ.update(limit_threads(args.threads, {}))
    vary = [(1, 64, 4096), (8, 64, 4096), (32, 64, 4096), (128, 64, 4096), (256, 64, 4096)]
    vary += [(32, 256, 4096), (32, 768, 4096), (32, 64, 512), (32, 64, 16384)]
    with tempfile.TemporaryDirectory() as temporary:
        folder, origin = checkpoint(args.model, Path(temporary))
        found = [measure(folder, *setting, args.steps) for setting in vary]
    rows = [list(result.values()) for result in found]
    at_32 = next(r for r in found if r["batch"] == 32)
    facts = machine()
    markdown = "\n\n".join([
        f"# Outside the model\n\n{facts}",
        f"{args.model} ({origin}), {args.threads} threads, medians of {args.steps} steps.",
        table(["batch", "context", "blocks in the pool", "step ms", "outside the model ms", "share"], rows),
        f"At batch 32 the share is {at_32['share']:.1%} (goal: at most 15 %).",
    ])  # fmt: skip
    save(
        args.name,
        {"machine": facts, "threads": args.threads, "model": args.model, "rows": found},
        markdown,
        keep=not args.quick,
    )


if __name__ == "__main__":
    main()
