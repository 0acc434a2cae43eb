"""Times the steps of real vLLM 0.22.1 from the very first one on. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER

The engine runs inside this process. Nothing is warmed up beforehand. Requests of random lengths come one after the
other; for each step that computed something, (tokens, milliseconds) goes to FOLDER/result.json, in order.
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
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in this process, so that the probe can reach it
}
NUM_REQUESTS = 24
BUDGET = 320


def requests() -> list[tuple[int, int, int]]:
    """(step in which it comes, prompt tokens, output tokens), by a fixed seed."""
    rng = random.Random(18)
    return [(6 * number, rng.randrange(8, 300), rng.randrange(4, 16)) for number in range(NUM_REQUESTS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, SamplingParams, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "seed": 0, "max_num_seqs": 32,
        "max_num_batched_tokens": BUDGET, "enable_prefix_caching": False,
    }  # fmt: skip
    engine = LLM(model=args.model, distributed_executor_backend=UniProcExecutor, **options).llm_engine
    scheduler, planned = engine.engine_core.engine_core.scheduler, []
    original = scheduler.schedule

    def schedule(*a, **k):
        output = original(*a, **k)
        planned.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = schedule
    rng, coming, steps, tick = random.Random(1), requests(), [], 0
    while coming or engine.has_unfinished_requests():
        while coming and coming[0][0] <= tick:
            _, length, max_tokens = coming.pop(0)
            prompt = {"prompt_token_ids": [rng.randrange(300, 4000) for _ in range(length)]}
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(f"{tick}", prompt, params)
        start, seen = time.perf_counter(), len(planned)
        engine.step()
        ms = 1e3 * (time.perf_counter() - start)
        if sum(planned[seen:]):
            steps.append([planned[-1], round(ms, 3)])
        tick += 1
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"vllm": __version__, "options": options, "steps": steps}
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
