"""Greedy tokens of pocket on a GPU beside those of the numpy engine: where they part, and how near a tie that was.

python -m benchmarks.gpu.near_ties --out FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

POCKET = str(Path(__file__).resolve().parents[2] / "models" / "pocket")
STARTS = ("What is a {}?", "Explain {} in one sentence.", "{} and the scheduler:", "def {}(x):", "Why does {} matter?")
THINGS = ("KV block", "token", "prefix cache", "block table", "draft model", "batch", "preemption", "chunk", "sampler",
          "CUDA graph", "request", "queue")  # fmt: skip


def main() -> None:
    """Run both, and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    from mini_vllm import LLM, SamplingParams

    prompts = [start.format(thing) for start in STARTS for thing in THINGS]
    settings = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    known = [o.outputs[0] for o in LLM(POCKET).generate(
        prompts, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=2), use_tqdm=False
    )]  # fmt: skip
    found: dict[str, Any] = {"prompts": len(prompts), "tokens": 64}
    for dtype in ("float32", "bfloat16"):
        outputs = LLM(POCKET, device=args.device, dtype=dtype, num_blocks=4096).generate(
            prompts, settings, use_tqdm=False
        )
        gaps = []
        for cpu, gpu in zip(known, outputs, strict=True):
            pairs = zip(cpu.token_ids, gpu.outputs[0].token_ids, strict=True)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if at is not None:
                best = sorted((entry.logprob for entry in cpu.logprobs[at].values()), reverse=True)
                gaps.append(round(best[0] - best[1], 5))
        found[dtype] = {"parted": len(gaps), "gaps": sorted(gaps)}
        print(dtype, found[dtype], flush=True)
    Path(args.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
