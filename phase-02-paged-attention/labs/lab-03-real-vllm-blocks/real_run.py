"""Runs real vLLM 0.22.1 once and leaves what its block pool did in a folder. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER > FOLDER/run.log 2>&1

Variants
    pool      12 blocks of 16 tokens; five requests one after the other, a probe around scheduler.schedule
    pool-off  the same with enable_prefix_caching=False
    hits      1 GiB of KV cache; 8 identical prompts of 1,025 tokens, then one that shares half, then a short one twice
    space-2   2 GiB of KV cache, blocks of 16; starts and stops
    default   1 GiB of KV cache and nothing said about the block size; starts and stops

What the engine prints goes to stdout and stderr; the figures go to FOLDER/result.json.
"""

import argparse
import json
import os
from pathlib import Path

VARIANTS = ("pool", "pool-off", "hits", "space-2", "default")
QUIET = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",  # no compilation: the lab is about memory
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, so that its pool is a plain object
    "VLLM_LOGGING_LEVEL": "INFO",
}


def engine_options(variant: str) -> dict:
    """Keyword arguments of `LLM`."""
    options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 2048, "seed": 0, "disable_log_stats": False}
    if variant != "default":
        options["block_size"] = 16
    if variant.startswith("pool"):
        options |= {"num_gpu_blocks_override": 12, "max_model_len": 128}
        options["enable_prefix_caching"] = variant == "pool"
    return options


def workload(variant: str) -> list[list[list[int]]]:
    """Calls of `generate`, each a list of prompts (token ids below 250, so that a byte-level toy can run them too)."""
    shared = [10 + i % 200 for i in range(40)]
    if variant.startswith("pool"):
        return [[shared], [shared], [shared[:32] + [7] * 8], [[9] * 100], [shared]]
    if variant == "hits":
        long = [5 + (7 * i) % 240 for i in range(1025)]
        half = long[:512] + [3] * 513
        return [[long] * 8, [half], [long[:6]], [long[:6]]]
    return []


def attach_probe(scheduler) -> list[dict]:
    """Wrap `schedule`: after each plan keep block tables, users, usage and the free queue; change nothing."""
    steps: list[dict] = []
    original = scheduler.schedule

    def schedule(*args, **kwargs):
        output = original(*args, **kwargs)
        manager, names = scheduler.kv_cache_manager, list(output.num_scheduled_tokens)
        pool = manager.block_pool
        tables = {name: list(manager.get_block_ids(name)[0]) for name in names}
        steps.append({
            "scheduled": dict(output.num_scheduled_tokens),
            "tables": tables,
            "ref_counts": {name: [pool.blocks[i].ref_cnt for i in ids] for name, ids in tables.items()},
            "usage": round(pool.get_usage(), 6),
            "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()][:24],
        })  # fmt: skip
        return output

    scheduler.schedule = schedule
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--variant", choices=VARIANTS, default="pool")
    args = parser.parse_args()
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2" if args.variant == "space-2" else "1"
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, SamplingParams, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = engine_options(args.variant)
    llm = LLM(model=args.model, distributed_executor_backend=UniProcExecutor, **options)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    steps = attach_probe(scheduler) if args.variant.startswith("pool") else []
    params = SamplingParams(temperature=0.0, max_tokens=12 if args.variant.startswith("pool") else 2, ignore_eos=True)
    calls = []
    for prompts in workload(args.variant):
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        queue = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        calls.append({
            "prompts": prompts if args.variant.startswith("pool") else [len(p) for p in prompts],
            "cached": [output.num_cached_tokens for output in outputs],
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "usage_after": pool.get_usage(),
            "free_after": queue if args.variant.startswith("pool") else queue[:4],
            "hashed_after": sorted(b.block_id for b in pool.blocks if b.block_hash is not None)[:24],
        })  # fmt: skip
    config = llm.llm_engine.vllm_config
    result = {
        "vllm": __version__,
        "variant": args.variant,
        "options": options,
        "kv_cache_space_gib": int(os.environ["VLLM_CPU_KVCACHE_SPACE"]),
        "prefix_caching_in_effect": config.cache_config.enable_prefix_caching,
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "hash_algo": config.cache_config.prefix_caching_hash_algo,
        "block_size": config.cache_config.block_size,
        "num_blocks": config.cache_config.num_gpu_blocks,
        "max_model_len": config.model_config.max_model_len,
        "calls": calls,
        "steps": steps,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":  # vLLM may start processes of its own, which import this file again
    main()
