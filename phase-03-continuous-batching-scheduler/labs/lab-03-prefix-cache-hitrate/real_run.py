"""Runs real vLLM 0.22.1 on sixteen prompts with one system prompt. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm on

Arms
    on       enable_prefix_caching=True, a budget in which all prompts fit one step
    off      enable_prefix_caching=False, the rest the same
    chunked  caching on, a budget of 64 tokens: the shared prefix itself needs several steps

The engine runs inside this process, with a probe around `scheduler.schedule`. Figures go to FOLDER/result.json.
"""

import argparse
import json
import os
import time
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in this process, so that the probe can reach it
}
SENTENCES = (
    "You are a careful assistant of an engineering team. ",
    "Answer in one short paragraph and say which part of the engine you mean. ",
)
REPEATS = 12
NUM_REQUESTS = 16
BLOCK_SIZE = 16


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=["on", "off", "chunked"], default="on")
    return parser.parse_args()


def prompts() -> list[str]:
    """One instruction, repeated until it is as long as a real system prompt, and a question of each user's own."""
    system = "".join(SENTENCES) * REPEATS
    return [f"{system}Question {i}: what is a KV block?" for i in range(NUM_REQUESTS)]


def attach_probe(scheduler, steps: list[dict]) -> None:
    """Keep, for each step, the tokens of each request and the blocks in use after planning (lab 01-04)."""
    original = scheduler.schedule

    def schedule(*args, **kwargs):
        output = original(*args, **kwargs)
        pool = scheduler.kv_cache_manager.block_pool
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        steps.append({"tokens": dict(output.num_scheduled_tokens), "blocks_in_use": used})
        return output

    scheduler.schedule = schedule


def counters(llm) -> dict[str, int]:
    """The engine's own counters, by name."""
    wanted = ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:num_preemptions", "vllm:prompt_tokens")
    return {metric.name: int(metric.value) for metric in llm.get_metrics() if metric.name in wanted}


def main() -> None:
    args = parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, SamplingParams, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "seed": 0,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64 if args.arm == "chunked" else 8192,
        "enable_prefix_caching": args.arm != "off",
        "disable_log_stats": False,
    }
    llm = LLM(model=args.model, distributed_executor_backend=UniProcExecutor, **options)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    llm.generate([{"prompt_token_ids": list(range(3000, 3200))}], params, use_tqdm=False)  # warm-up, other tokens
    before = counters(llm)
    steps: list[dict] = []
    attach_probe(llm.llm_engine.engine_core.engine_core.scheduler, steps)
    start = time.perf_counter()
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    seconds = time.perf_counter() - start
    after = counters(llm)
    result = {
        "vllm": __version__,
        "arm": args.arm,
        "options": options,
        "seconds": round(seconds, 3),
        "counters": {name: after[name] - before.get(name, 0) for name in after},
        "requests": [
            {
                "prompt_token_ids": list(output.prompt_token_ids),
                "num_cached_tokens": output.num_cached_tokens,
                "token_ids": list(output.outputs[0].token_ids),
            }
            for output in outputs
        ],
        "steps": steps,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
