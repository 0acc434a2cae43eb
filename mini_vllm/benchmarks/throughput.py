"""`mini-vllm bench throughput`: all requests at once. How many tokens a second?

Upstream twin: `vllm/benchmarks/throughput.py`: the same options and result file, but for its other engines. Prompts of
`random` are token ids here and texts there: their lengths are exact, and no tokenizer is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from mini_vllm.benchmarks.datasets.datasets import SampleRequest, add_dataset_parser, get_samples
from mini_vllm.benchmarks.lib.utils import clear_inf, save_to_pytorch_benchmark_format
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.structured_outputs_params import StructuredOutputsParams

BACKENDS = ("vllm", "vllm-chat")
"""Prompts as they are, or as a user's message in the checkpoint's chat template."""


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Upstream: upstream/vllm/benchmarks/throughput.py:878 — `add_cli_args`; there 1,000 requests by default."""
    add_dataset_parser(parser, num_prompts=32, seed=False)
    parser.add_argument("--backend", choices=BACKENDS, default="vllm", help="vllm-chat: with the chat template.")
    parser.add_argument("--input-len", type=int, help="Tokens per prompt of a random dataset.")
    parser.add_argument("--output-len", type=int, help="Tokens per answer, in place of the dataset's own.")
    parser.add_argument("--prefix-len", type=int, help="Tokens that all random prompts share.")
    parser.add_argument("--n", type=int, default=1, help="Completions per prompt.")
    parser.add_argument("--num-warmups", type=int, default=1, help="Requests before those that count.")
    parser.add_argument("--output-json", help="Write the results there.")
    parser.add_argument("--async-engine", action="store_true", help="AsyncLLM in place of LLM.")
    parser.add_argument("--disable-detokenize", action="store_true", help="Make no text.")


def check_args(args: argparse.Namespace) -> None:
    """Raises ValueError. The general lengths become those of the datasets."""
    if args.n < 1:
        raise ValueError(f"n must be at least 1, got {args.n}")
    if args.num_warmups < 0:
        raise ValueError(f"num_warmups must be at least 0, got {args.num_warmups}")
    if args.async_engine and args.backend != "vllm":
        raise ValueError("--async-engine goes with --backend vllm")
    for option, prefixes in (("input_len", ("random",)), ("prefix_len", ("random", "prefix_repetition"))):
        for prefix in prefixes if getattr(args, option) is not None else ():
            setattr(args, f"{prefix}_{option}", getattr(args, option))
    if args.output_len is not None:
        for prefix in ("random", "sharegpt", "custom", "prefix_repetition", "conversations", "json"):
            setattr(args, f"{prefix}_output_len", args.output_len)
    args.seed = args.seed or 0
    args.random_as_token_ids = args.backend == "vllm"


def samples_of(args: argparse.Namespace, tokenizer: Any) -> tuple[list[SampleRequest], list[SampleRequest]]:
    """(those that count, warm-ups). The latter are of another seed, so that no cache knows the former."""
    warmups: list[SampleRequest] = []
    if args.num_warmups:
        other = argparse.Namespace(**{**vars(args), "seed": args.seed + 1, "num_prompts": args.num_warmups})
        if other.dataset_name == "prefix_repetition":
            other.prefix_repetition_num_prefixes = 1
        warmups = get_samples(other, tokenizer)
    return get_samples(args, tokenizer), warmups


def params_of(request: SampleRequest, args: argparse.Namespace) -> SamplingParams:
    """Sampling of one request: its whole length, unless a schema ends it."""
    schema = (request.extra_body or {}).get("structured_outputs")
    return SamplingParams(
        n=args.n,
        temperature=1.0,
        ignore_eos=schema is None,
        max_tokens=request.expected_output_len,
        detokenize=not args.disable_detokenize,
        structured_outputs=None if schema is None else StructuredOutputsParams(**schema),
        seed=args.seed,
    )


def run_vllm(llm: Any, requests: list[SampleRequest], args: argparse.Namespace) -> tuple[float, list[Any]]:
    """(seconds, outputs) of one call of `LLM.generate`, or of `LLM.chat`.

    Upstream: upstream/vllm/benchmarks/throughput.py:47 — `run_vllm`.
    """
    params = [params_of(request, args) for request in requests]
    start = time.perf_counter()
    if args.backend == "vllm-chat":
        messages = [[{"role": "user", "content": request.prompt}] for request in requests]
        outputs = llm.chat(messages, params, use_tqdm=len(requests) > 1)
    else:
        outputs = llm.generate([_prompt(request) for request in requests], params, use_tqdm=len(requests) > 1)
    return time.perf_counter() - start, outputs


async def run_vllm_async(
    engine: Any, requests: list[SampleRequest], args: argparse.Namespace
) -> tuple[float, list[Any]]:
    """The same on an `AsyncLLM`, a task for each request.

    Upstream: upstream/vllm/benchmarks/throughput.py:280 — `run_vllm_async`.
    """

    async def one(i: int, request: SampleRequest) -> Any:
        last = None
        async for output in engine.generate(_prompt(request), params_of(request, args), f"throughput-{i}"):
            last = output
        return last

    start = time.perf_counter()
    outputs = await asyncio.gather(*(one(i, request) for i, request in enumerate(requests)))
    return time.perf_counter() - start, list(outputs)


def _prompt(request: SampleRequest) -> Any:
    return request.prompt if isinstance(request.prompt, str) else {"prompt_token_ids": list(request.prompt)}


def results_of(seconds: float, outputs: list[Any]) -> dict[str, Any]:
    """The result file: upstream/vllm/benchmarks/throughput.py:1208 — "results = {"; the last two fields are ours."""
    num_input = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(outputs),
        "total_num_tokens": num_input + num_output,
        "requests_per_second": len(outputs) / seconds,
        "tokens_per_second": (num_input + num_output) / seconds,
        "num_prompt_tokens": num_input,
        "num_output_tokens": num_output,
    }


def write(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write the result file, where one is asked for."""
    if args.output_json:
        Path(args.output_json).write_text(json.dumps(clear_inf(results), indent=4) + "\n", encoding="utf-8")
        names = ("requests_per_second", "tokens_per_second")
        rest = {name: value for name, value in results.items() if name not in names}
        save_to_pytorch_benchmark_format(args, {name: [results[name]] for name in names}, rest, args.output_json)
