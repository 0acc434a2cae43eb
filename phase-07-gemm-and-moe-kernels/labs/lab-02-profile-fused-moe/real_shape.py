"""Profiles single steps of real vLLM 0.22.1 on a CUDA card, for the shape of an MoE model. Given: nothing to edit.

    python real_shape.py --model olmoe --out FOLDER

`--model` names a folder with a config.json; the weights are random (`load_format="dummy"`), so nothing is downloaded.
Three kinds of steps, as in the page's table: 8 decodes, 64 decodes at 512 tokens of context, one prefill of 4,096.
Tokens are sampled at temperature 1: greedy requests of a random model would soon all say the same, and touch the same
experts. FOLDER/result.json gets, per kind, the rows of the GPU: [name, microseconds, calls], summed over the steps.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the profiler must see the engine's work
}
DECODE_STEPS = 16
KINDS = ((8, 1, 512), (64, 1, 512), (1, 4096, 4096))  # sequences, new tokens of each, context


def gpu_rows(llm) -> list[list]:
    """Name, microseconds and calls of everything that ran on the GPU."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    events = worker.profiler.profiler.key_averages()
    kernels = [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]
    return sorted(([e.key, round(e.self_device_time_total, 1), e.count] for e in kernels), key=lambda row: -row[1])


def add(llm, rng: random.Random, name: str, tokens: int, max_tokens: int) -> None:
    """One request of random token ids."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    ids = [rng.randrange(10, 50000) for _ in range(tokens)]
    llm.llm_engine.add_request(name, {"prompt_token_ids": ids}, params)


def drain(llm) -> None:
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()


def timed_steps(llm, count: int) -> list[float]:
    """Wall milliseconds of each of the next steps."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        llm.llm_engine.step()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def decode(llm, rng: random.Random, seqs: int, context: int) -> dict:
    """Profile DECODE_STEPS steps of `seqs` requests, around `context` tokens each."""
    for i in range(seqs):
        add(llm, rng, f"{seqs}-{i}", context - 3 * DECODE_STEPS // 2, 4 * DECODE_STEPS)
    timed_steps(llm, 4)  # prefill, and past the first decodes
    wall = timed_steps(llm, DECODE_STEPS)
    llm.start_profile()
    timed_steps(llm, DECODE_STEPS)
    llm.stop_profile()
    rows = gpu_rows(llm)
    drain(llm)
    return {"wall_ms_per_step": round(statistics.median(wall), 3), "rows": rows}


def prefill(llm, rng: random.Random, tokens: int) -> dict:
    """Profile the one step of a request of `tokens` prompt tokens."""
    for i in range(3):
        if i == 2:
            llm.start_profile()
        start = time.perf_counter()
        add(llm, rng, f"prefill-{i}", tokens, 1)
        drain(llm)
        if i == 1:
            wall = (time.perf_counter() - start) * 1e3
    llm.stop_profile()
    return {"wall_ms_per_step": round(wall, 3), "rows": gpu_rows(llm)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder with a config.json")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, __version__

    options = {
        "dtype": "bfloat16", "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 4608,
        "enable_prefix_caching": False, "moe_backend": "triton", "gpu_memory_utilization": 0.6, "seed": 0,
    }  # fmt: skip
    found = {"vllm": __version__, "options": options, "kinds": []}
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as traces:
        profiler = {"profiler": "torch", "torch_profiler_dir": traces, "torch_profiler_with_stack": False}
        llm = LLM(model=args.model, profiler_config=profiler, **options)
        layers = llm.llm_engine.model_config.hf_config.num_hidden_layers
        for seqs, query, context in KINDS:
            result = decode(llm, rng, seqs, context) if query == 1 else prefill(llm, rng, query)
            grouped = sum(calls for name, _, calls in result["rows"] if name == "fused_moe_kernel")
            kind = {"step": [seqs, query, context], "num_steps": grouped / (2 * layers)}  # two products a layer
            found["kinds"].append(kind | result)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
