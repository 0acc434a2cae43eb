"""One arm of the measurement on real vLLM 0.22.1: decode milliseconds per step at several batch sizes.

The interpreter must be the one that has vLLM (`course vllm` builds it for a CPU; on a GPU it is your own):

    python real_run.py --model models/pocket --arm default --out FOLDER > FOLDER/run.log 2>&1

Arms
    eager        enforce_eager=True: no compilation, no graphs
    compiled     cudagraph_mode=NONE: compiled kernels, launched one by one
    graphs       mode=0, cudagraph_mode=FULL_DECODE_ONLY: uncompiled kernels, recorded
    piecewise    cudagraph_mode=PIECEWISE
    default      as vLLM comes

One arm a process: memory of an engine comes back when its process ends, and not surely before. Every prompt has 16
token ids of its own, every request decodes the same number of tokens past EOS; one round warms up, three are kept,
their median counts. A round's time with one output token is taken off, so that what remains is decoding.
"""

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path

QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
ARMS = {
    "eager": {"enforce_eager": True},
    "compiled": {"compilation_config": {"cudagraph_mode": "NONE"}},
    "graphs": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}},
    "piecewise": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "default": {},
}


def seconds(llm, prompts, max_tokens):
    """Wall time of one `generate` in which every request gives exactly max_tokens tokens."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    assert all(len(output.outputs[0].token_ids) == max_tokens for output in outputs)
    return time.perf_counter() - start


def decode_ms(llm, batch, steps, repeats=3):
    """Milliseconds of a decode step: [seconds(1 + steps) - seconds(1)] / steps, per kept round."""
    rng, kept = random.Random(1), []
    for repeat in range(repeats + 1):
        prompts = [[[rng.randrange(10, 250) for _ in range(16)] for _ in range(batch)] for _ in range(2)]
        first = seconds(llm, prompts[0], 1)
        whole = seconds(llm, prompts[1], 1 + steps)
        if repeat:
            kept.append((whole - first) / steps * 1e3)
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--arm", choices=ARMS, default="default")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, __version__

    start = time.time()
    llm = LLM(model=args.model, max_model_len=512, gpu_memory_utilization=0.5, dtype=args.dtype, **ARMS[args.arm])
    started = time.time() - start
    rows = []
    for batch in map(int, args.batches.split(",")):
        kept = decode_ms(llm, batch, args.steps)
        rows.append({"batch": batch, "ms": round(statistics.median(kept), 3), "all_ms": [round(ms, 3) for ms in kept]})
    config = llm.llm_engine.vllm_config
    found = {
        "vllm": __version__,
        "arm": args.arm,
        "mode": str(config.compilation_config.mode),
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "start_seconds": round(started, 2),
        "num_gpu_blocks": config.cache_config.num_gpu_blocks,
        "decode": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
