"""Runs real vLLM 0.22.1 with n > 1, and counts what the prompt costs. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm shared

Arms
    shared    prefix caching on, as vLLM comes
    unshared  the same requests with `enable_prefix_caching=False`
    seeds     texts of requests with n = 4 and a seed, and one error
    votes     a hundred questions, sixteen answers each, and the greedy one
    times     n answers by one request, and by n requests that a salt keeps out of each other's cache

In the first two arms prompts are random tokens, and each request is alone in the engine. Tokens that were looked up in
the cache and found there come from vLLM's own counters, tokens that were computed and blocks that were held from the
plan of each step. Times are the process's seconds on the processor: the engine runs in it, on one thread, and what else
the machine does hardly changes them. Figures go to FOLDER/result.json.
"""

import argparse
import json
import os
import random
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
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
SHAPES = (  # n, prompt tokens, output tokens
    (1, 500, 24), (4, 9, 24), (4, 16, 24), (4, 17, 24), (4, 33, 24), (4, 500, 24), (4, 512, 24), (4, 513, 24),
    (8, 1000, 17), (8, 1000, 40), (16, 480, 100), (4, 2000, 40),
)  # fmt: skip
TIMED = ((1, 1600, 1), (4, 1600, 1), (16, 1600, 1), (1, 1600, 48), (4, 1600, 48), (16, 1600, 48), (16, 100, 48))
QUESTIONS, ANSWERS, HOT = 100, 16, 1.6
STORY = [{"role": "user", "content": "Tell me a story."}]


def counters(llm) -> tuple[int, int]:
    """Tokens looked up in the prefix cache so far, and tokens found there."""
    values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return int(values["vllm:prefix_cache_queries"]), int(values["vllm:prefix_cache_hits"])


def watch_steps(scheduler) -> list[dict]:
    """A list that gets a row for each planned step: tokens per request, and blocks held when it was planned."""
    pool, plan, steps = scheduler.kv_cache_manager.block_pool, scheduler.schedule, []

    def planned(*args, **kwargs):
        output = plan(*args, **kwargs)
        held = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        if output.total_num_scheduled_tokens:
            steps.append({"tokens": list(output.num_scheduled_tokens.values()), "blocks": held})
        return output

    scheduler.schedule = planned
    return steps


def measure_shapes(llm, make) -> list[dict]:
    """One request of each of SHAPES: what was looked up, found, computed, held."""
    rng, rows = random.Random(0), []
    steps = watch_steps(llm.llm_engine.engine_core.engine_core.scheduler)
    for n, prompt_len, output_len in SHAPES:
        prompt = {"prompt_token_ids": [rng.randrange(300, 4000) for _ in range(prompt_len)]}
        steps.clear()
        before = counters(llm)
        (output,) = llm.generate([prompt], make(n=n, max_tokens=output_len, ignore_eos=True), use_tqdm=False)
        queries, hits = (after - at for after, at in zip(counters(llm), before, strict=True))
        assert [len(each.token_ids) for each in output.outputs] == [output_len] * n
        rows.append({
            "n": n, "prompt_len": prompt_len, "output_len": output_len, "queries": queries, "hits": hits,
            "computed": sum(sum(step["tokens"]) for step in steps), "peak_blocks": max(s["blocks"] for s in steps),
            "first_steps": [step["tokens"] for step in steps[:2]],
        })  # fmt: skip
    return rows


def measure_tail(llm, make) -> dict:
    """Four stories of one long prompt, each until it ends by itself: who runs, and what is held, step by step."""
    steps = watch_steps(llm.llm_engine.engine_core.engine_core.scheduler)
    word = "Once upon a time there was a cheerful fox who lived in a house near the mill. " * 30
    chat = [{"role": "user", "content": word + "Tell me a story about a fox."}]
    (output,) = llm.chat([chat], make(n=4, max_tokens=300), use_tqdm=False)
    rows = [{"running": len(step["tokens"]), "blocks": step["blocks"]} for step in steps]
    return {"prompt_len": len(output.prompt_token_ids), "steps": rows}


def measure_seeds(llm, make) -> dict:
    """Texts of one question, by n and seed."""

    def texts(n, seed):
        (output,) = llm.chat([STORY], make(n=n, seed=seed, max_tokens=24), use_tqdm=False)
        return [each.text for each in output.outputs]

    try:
        make(n=4, temperature=0.0)
        error = ""
    except ValueError as refused:
        error = str(refused)
    return {
        "seed 7": texts(4, 7), "seed 7 again": texts(4, 7), "seed 8": texts(4, 8),
        "one each, seeds 7 to 10": [texts(1, seed)[0] for seed in (7, 8, 9, 10)],
        "no seed": texts(4, None), "no seed again": texts(4, None), "n = 4 at temperature 0": error,
    }  # fmt: skip


def measure_votes(llm, make) -> list[dict]:
    """How many blocks so many tokens need: the greedy answer, and sixteen at a high temperature."""
    numbers = sorted(random.Random(1).sample([n for n in range(20, 2048) if n % 10 == 7], QUESTIONS))
    chats = [[{"role": "user", "content": f"How many KV blocks for {n} tokens?"}] for n in numbers]
    greedy = llm.chat(chats, make(temperature=0.0, max_tokens=32), use_tqdm=False)
    hot = [make(n=ANSWERS, temperature=HOT, seed=1000 * i, max_tokens=32) for i in range(QUESTIONS)]
    drawn = llm.chat(chats, hot, use_tqdm=False)
    return [
        {"tokens": n, "greedy": one.outputs[0].text, "drawn": [each.text for each in many.outputs]}
        for n, one, many in zip(numbers, greedy, drawn, strict=True)
    ]


def measure_times(llm, make) -> list[dict]:
    """Seconds of each of TIMED, both ways, five times after one more that does not count; each prompt is a new one."""
    rng, rows = random.Random(2), []
    for n, prompt_len, output_len in TIMED:
        for shared in (True, False):
            taken = []
            for _ in range(6):
                ids = [rng.randrange(300, 4000) for _ in range(prompt_len)]
                salted = [{"prompt_token_ids": ids, "cache_salt": f"child {i}"} for i in range(n)]
                prompts = [{"prompt_token_ids": ids}] if shared else salted
                params = make(n=n if shared else 1, max_tokens=output_len, ignore_eos=True)
                start = time.process_time()
                llm.generate(prompts, params, use_tqdm=False)
                taken.append(round(time.process_time() - start, 4))
            shape = {"n": n, "prompt_len": prompt_len, "output_len": output_len, "shared": shared}
            rows.append({**shape, "seconds": taken[1:]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=["shared", "unshared", "seeds", "votes", "times"], default="shared")
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, SamplingParams, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 2048, "max_num_batched_tokens": 2048,
        "max_num_seqs": 64, "block_size": 16, "seed": 0, "disable_log_stats": False,
        "enable_prefix_caching": args.arm != "unshared",
    }  # fmt: skip
    llm = LLM(model=args.model, distributed_executor_backend=UniProcExecutor, **options)
    result = {"vllm": __version__, "arm": args.arm, "options": options}
    if args.arm in ("shared", "unshared"):
        result["rows"] = measure_shapes(llm, SamplingParams)
        result["tail"] = measure_tail(llm, SamplingParams)
    else:
        ask = {"seeds": measure_seeds, "votes": measure_votes, "times": measure_times}[args.arm]
        result[args.arm] = ask(llm, SamplingParams)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
