"""Records what the client of the real vLLM v0.22.1 (`vllm bench serve`) makes of seeds and of outputs -> bench.json.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_bench.py

Recorded: the prompts and lengths of its synthetic datasets on pocket's tokenizer, when its requests leave (with its
clock and its sleep taken away), and the result fields that it computes from given outputs.
"""

import asyncio
import dataclasses
import json
import os
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
DATASETS = {
    "random": "--random-input-len 40 --random-output-len 16 --random-range-ratio 0.5 --random-prefix-len 8 "
    "--num-prompts 6 --seed 3",
    "random-plain": "--random-input-len 32 --random-output-len 16 --num-prompts 6",
    "prefix_repetition": "--dataset-name prefix_repetition --prefix-repetition-num-prefixes 2 --num-prompts 6 --seed 3 "
    "--prefix-repetition-prefix-len 24 --prefix-repetition-suffix-len 8 --prefix-repetition-output-len 5",
}
ARRIVALS = {
    "poisson": {"request_rate": 8.0},
    "bursty": {"request_rate": 8.0, "burstiness": 0.25},
    "even": {"request_rate": 8.0, "burstiness": float("inf")},
    "at once": {"request_rate": float("inf")},
    "linear": {"request_rate": float("inf"), "ramp_up_strategy": "linear", "ramp_up_start_rps": 2,
               "ramp_up_end_rps": 10},
    "exponential": {"request_rate": float("inf"), "ramp_up_strategy": "exponential", "ramp_up_start_rps": 2,
                    "ramp_up_end_rps": 32},
}  # fmt: skip
OUTPUTS = [
    {"success": True, "latency": 1.5, "output_tokens": 4, "ttft": 0.5, "itl": [0.25, 0.5, 0.25], "prompt_len": 10,
     "start_time": 100.0},
    {"success": True, "latency": 3.0, "output_tokens": 9, "ttft": 1.0, "itl": [0.5, 0.5, 1.0], "prompt_len": 7,
     "start_time": 100.25},
    {"success": False, "error": "gone", "prompt_len": 5, "start_time": 100.5},
    {"success": True, "latency": 0.25, "output_tokens": 1, "ttft": 0.25, "itl": [], "prompt_len": 3,
     "start_time": 102.0},
]  # fmt: skip
GOODPUT = {"ttft": 600.0, "tpot": 350.0, "e2el": 2000.0}


def datasets():
    """Prompts, their lengths and those of the answers."""
    import numpy as np
    from vllm.benchmarks.datasets import add_dataset_parser, get_samples
    from vllm.tokenizers import get_tokenizer
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    tokenizer = get_tokenizer(str(ROOT / "models" / "pocket"))
    found = {}
    for name, options in DATASETS.items():
        parser = FlexibleArgumentParser()
        add_dataset_parser(parser)
        args = parser.parse_args(options.split())
        args.request_id_prefix, args.backend = "", "openai"
        random.seed(args.seed)
        np.random.seed(args.seed)
        requests = get_samples(args, tokenizer)
        found[name] = {
            "options": options,
            "requests": [[r.prompt, r.prompt_len, r.expected_output_len] for r in requests],
        }
    return found


async def arrivals(serve, given, count=12):
    """Seconds after the start at which each request leaves."""
    import numpy as np

    now = 1000.0
    np.random.seed(5)

    class Clock:
        time = staticmethod(lambda: now)

    class Loop:
        @staticmethod
        async def sleep(seconds):
            nonlocal now
            now += seconds

    serve.time, serve.asyncio = Clock, Loop
    left = []
    async for _, _ in serve.get_request([None] * count, **given):
        left.append(now - 1000.0)
    return left


def metrics(serve):
    """Everything `calculate_metrics` says of OUTPUTS."""
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput

    outputs = [RequestFuncOutput(**each) for each in OUTPUTS]
    found, lens = serve.calculate_metrics([], outputs, 3.5, None, [50.0, 99.0], GOODPUT)
    return {"outputs": OUTPUTS, "goodput": GOODPUT, "metrics": dataclasses.asdict(found), "output_lens": lens}


def main() -> None:
    """Run what is listed in the docstring."""
    os.environ.update(SETTINGS)
    import vllm.benchmarks.serve as serve
    from vllm import __version__

    real_sleep, real_time = serve.asyncio, serve.time
    found = {"datasets": datasets(), "metrics": metrics(serve), "arrivals": {}}
    for name, given in ARRIVALS.items():
        serve.asyncio, serve.time = real_sleep, real_time
        shown = {key: "inf" if value == float("inf") else value for key, value in given.items()}
        found["arrivals"][name] = {"given": shown, "left": asyncio.run(arrivals(serve, given))}
    found["provenance"] = {"vllm": __version__, "python": sys.version.split()[0], "model": "models/pocket"}
    path = Path(__file__).with_name("bench.json")
    path.write_text(json.dumps(found, indent=1, default=float) + "\n", encoding="utf-8")
    print("wrote", path.name)


if __name__ == "__main__":
    main()
