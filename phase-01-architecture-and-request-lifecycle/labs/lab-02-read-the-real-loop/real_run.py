"""Runs real vLLM 0.22.1 once and leaves what it did in a folder. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER > FOLDER/run.log 2>&1

Variants                                       Workloads
    default   nothing said about scheduling        one    one prompt, 16 output tokens
    sync      async_scheduling=False               two    11 and 7 token ids, 4 outputs each, budget 8 (lab 04)
    inproc    the engine inside this process,      ends   one chat question, ended in three ways (lab 05)
              a probe around scheduler.schedule    stuck  min_tokens beyond the context, 40 steps (deep dive)

What the engine prints goes to stdout and stderr; the figures go to FOLDER/result.json.
"""

import argparse
import json
import os
import time
from pathlib import Path

QUIET = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",  # no compilation: the lab is about the loop
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "DEBUG",
}
QUESTION = "What is a KV block?"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--variant", choices=["default", "sync", "inproc"], default="default")
    parser.add_argument("--workload", choices=["one", "two", "ends", "stuck"], default="one")
    return parser.parse_args()


def engine_options(args: argparse.Namespace) -> dict:
    """Keyword arguments of `LLM`."""
    options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "seed": 0}
    options["enable_logging_iteration_details"] = True
    if args.variant == "sync":
        options["async_scheduling"] = False
    if args.workload == "two":
        options |= {"max_num_batched_tokens": 8, "max_num_seqs": 8, "enable_prefix_caching": False}
    if args.workload == "stuck":
        options["max_model_len"] = 32
    return options


def attach_probe(scheduler) -> list[dict[str, int]]:
    """Wrap `schedule`: keep a copy of each step's num_scheduled_tokens, change nothing. Lab 04 has you write this."""
    steps: list[dict[str, int]] = []
    original = scheduler.schedule

    def schedule(*args, **kwargs):
        output = original(*args, **kwargs)
        steps.append(dict(output.num_scheduled_tokens))
        return output

    scheduler.schedule = schedule
    return steps


def serve(llm, workload: str):
    """Run the workload; returns its RequestOutputs in the order of the requests."""
    from vllm import SamplingParams

    greedy = {"temperature": 0.0, "ignore_eos": True}
    if workload == "one":
        return llm.generate([QUESTION], SamplingParams(max_tokens=16, **greedy), use_tqdm=False)
    if workload == "two":
        prompts = [{"prompt_token_ids": list(range(10, 21))}, {"prompt_token_ids": list(range(30, 37))}]
        return llm.generate(prompts, SamplingParams(max_tokens=4, **greedy), use_tqdm=False)
    ways = [{"max_tokens": 128}, {"max_tokens": 5}, {"max_tokens": 64, "ignore_eos": True}]
    params = [SamplingParams(temperature=0.0, **way) for way in ways]
    return llm.chat([[{"role": "user", "content": QUESTION}]] * 3, params, use_tqdm=False)


def trace_stuck(llm, num_steps: int = 40) -> list[list]:
    """Prompt 10, context 32, min_tokens 50, in process only: [status, computed, tokens] after each of some steps."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    (prompt,) = llm._preprocess_cmpl([{"prompt_token_ids": list(range(10, 20))}])
    params = SamplingParams(temperature=0.0, max_tokens=100, min_tokens=50, ignore_eos=True)
    request_id = engine.add_request("stuck", prompt, params)
    request = engine.engine_core.engine_core.scheduler.requests[request_id]
    trace = []
    for _ in range(num_steps):
        engine.step()
        trace.append([request.status.name, request.num_computed_tokens, request.num_tokens])
    engine.abort_request([request_id], internal=True)
    return trace


def describe(output) -> dict:
    """The facts of one RequestOutput, as plain JSON."""
    completion = output.outputs[0]
    return {
        "request_id": output.request_id,
        "prompt_tokens": len(output.prompt_token_ids),
        "output_tokens": len(completion.token_ids),
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }


def main() -> None:
    args = parse_args()
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if args.variant == "inproc":
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = engine_options(args)
    extra = {"distributed_executor_backend": UniProcExecutor} if args.variant == "inproc" else {}
    llm = LLM(model=args.model, **options, **extra)
    steps = None
    if args.variant == "inproc":
        steps = attach_probe(llm.llm_engine.engine_core.engine_core.scheduler)
    trace = trace_stuck(llm) if args.workload == "stuck" else None
    outputs = serve(llm, args.workload) if trace is None else []
    time.sleep(0.5)  # let the other process write its last lines
    config = llm.llm_engine.vllm_config
    result = {
        "vllm": __version__,
        "variant": args.variant,
        "workload": args.workload,
        "options": options,
        "async_scheduling_in_effect": config.scheduler_config.async_scheduling,
        "block_size": config.cache_config.block_size,
        "num_blocks": config.cache_config.num_gpu_blocks,
        "max_model_len": config.model_config.max_model_len,
        "eos_token_ids": config.model_config.try_get_generation_config().get("eos_token_id"),
        "requests": [describe(output) for output in outputs],
        "steps": steps,
        "trace": trace,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":  # vLLM starts its own processes, which import this file again
    main()
