"""What prefix caching is worth: requests that share a long prefix, with and without it, on pocket.

python benchmarks/prefix.py            # half a minute on two cores
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, limit_threads, machine, make_prompts, save, table


def measure(caching: bool, num_requests: int, prefix: int, own: int, new: int) -> dict[str, Any]:
    """One batch of requests in a fresh engine: total time, mean and worst TTFT, tokens through the model."""
    from mini_vllm import LLM, SamplingParams

    settings = {"enable_prefix_caching": caching, "max_num_seqs": num_requests, "disable_log_stats": False}
    llm = LLM(str(ROOT / "models" / "pocket"), **settings)
    vocab = llm.llm_engine.model.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    llm.generate({"prompt_token_ids": make_prompts(1, 64, vocab, 99)[0]}, params)  # warm
    before = llm.llm_engine.stats.num_scheduled_tokens
    [shared] = make_prompts(1, prefix, vocab, 1)
    prompts = [{"prompt_token_ids": shared + tail} for tail in make_prompts(num_requests, own, vocab, 2)]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    total = time.perf_counter() - start
    waits = [output.metrics.ttft for output in outputs if output.metrics and output.metrics.ttft]
    return {
        "caching": caching,
        "tokens": llm.llm_engine.stats.num_scheduled_tokens - before,
        "cached": sum(output.num_cached_tokens or 0 for output in outputs),
        "total_s": total,
        "ttft_mean_s": statistics.mean(waits),
        "ttft_worst_s": max(waits),
        "answers": [output.outputs[0].token_ids for output in outputs],
    }


def main() -> None:
    """Both arms in turns, medians, `results/prefix.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="prefix")
    parser.add_argument("--quick", action="store_true", help="8 requests, one repeat, nothing written")
    args = parser.parse_args()
    os.environ.update(limit_threads(args.threads, {}))
    num_requests, repeats = (8, 1) if args.quick else (64, args.repeats)
    runs = [[measure(caching, num_requests, 512, 32, 16) for caching in (False, True)] for _ in range(repeats)]
    assert all(off["answers"] == on["answers"] for off, on in runs), "caching changed an answer"
    keys = ("tokens", "cached", "total_s", "ttft_mean_s", "ttft_worst_s")
    off, on = ({key: statistics.median(run[i][key] for run in runs) for key in keys} for i in (0, 1))
    rows = [[key, off[key], on[key], off[key] / on[key] if on[key] else None] for key in keys]
    text = (
        f"# Prefix caching\n\n{machine()}\n\n{num_requests} requests of 512 shared and 32 own tokens, 16 tokens out, "
        f"pocket, {args.threads} threads, medians of {repeats}; all answers equal.\n\n"
        + table(["", "without", "with", "without / with"], rows)
    )
    save(args.name, {"machine": machine(), "without": off, "with": on}, text, keep=not args.quick)


if __name__ == "__main__":
    main()
