"""`mini-vllm bench latency`: batches one after the other. How long until the first token, between tokens, in all?

Upstream twin: `vllm/benchmarks/latency.py`: the same options and result file. The times of single tokens are ours; for
them the engine is stepped here, as `LLM.generate` steps it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.benchmarks.lib.utils import clear_inf, progress_bar, save_to_pytorch_benchmark_format
from mini_vllm.sampling_params import SamplingParams

PERCENTAGES = (10, 25, 50, 75, 90, 99)


@dataclass
class Measured:
    """Seconds. ttft: one a completion; itl: one a token after the first, of all together; latencies: one a batch."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    request: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Upstream's options but for beam search; defaults are smaller, since a laptop's CPU is slower than a GPU (there:
    128 tokens out, batches of 8, 10 warm-ups, 30 batches).

    Upstream: upstream/vllm/benchmarks/latency.py:33 — `add_cli_args`.
    """
    parser.add_argument("--input-len", type=int, default=32, help="Tokens per prompt.")
    parser.add_argument("--output-len", type=int, default=64, help="Tokens to generate; EOS is ignored.")
    parser.add_argument("--batch-size", type=int, default=8, help="Requests at a time.")
    parser.add_argument("--n", type=int, default=1, help="Completions per prompt.")
    parser.add_argument("--num-iters-warmup", type=int, default=2, help="Batches before those that count.")
    parser.add_argument("--num-iters", type=int, default=10, help="Batches, one after the other.")
    parser.add_argument("--output-json", help="Write the results there.")
    parser.add_argument("--disable-detokenize", action="store_true", help="Make no text.")


def check_args(args: argparse.Namespace) -> None:
    """Raises ValueError."""
    for name in ("input_len", "output_len", "batch_size", "n", "num_iters"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(args, name)}")
    if args.num_iters_warmup < 0:
        raise ValueError(f"num_iters_warmup must be at least 0, got {args.num_iters_warmup}")


def measure(llm: Any, args: argparse.Namespace) -> Measured:
    """Run the batches. Every batch has prompts of its own, random token ids by `args.seed`.

    Raises ValueError where the lengths do not fit the model.
    """
    check_args(args)
    params = SamplingParams(
        n=args.n,
        temperature=1.0,
        ignore_eos=True,
        max_tokens=args.output_len,
        detokenize=not args.disable_detokenize,
        seed=args.seed or 0,
    )
    chance = np.random.default_rng(args.seed or 0)
    vocab_size, measured = llm.llm_engine.resolved_model.vocab_size, Measured()

    def batch() -> list[dict[str, list[int]]]:
        ids = chance.integers(vocab_size, size=(args.batch_size, args.input_len))
        return [{"prompt_token_ids": row} for row in ids.tolist()]

    for _ in range(args.num_iters_warmup):
        run_batch(llm.llm_engine, batch(), params, Measured())
    if llm.llm_engine.stats.cudagraph is not None:
        llm.llm_engine.stats.cudagraph.reset()
    with progress_bar("batches", args.num_iters) as advance:
        for _ in range(args.num_iters):
            run_batch(llm.llm_engine, batch(), params, measured)
            advance()
    return measured


def run_batch(engine: Any, prompts: list[Any], params: SamplingParams, measured: Measured) -> None:
    """All prompts at once, stepped until all are done; what it took is added to `measured`."""
    processed = [engine.process_inputs(prompt, params) for prompt in prompts]
    start = time.perf_counter()
    for i, item in enumerate(processed):
        engine.add_processed(f"latency-{i}", item)
    told: dict[tuple[str, int], tuple[int, float]] = {}
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            for completion in output.outputs:
                _tell(told, (output.request_id, completion.index), len(completion.token_ids), start, now, measured)
            if output.finished:
                measured.request.append(now - start)
    measured.latencies.append(time.perf_counter() - start)


def _tell(
    told: dict[tuple[str, int], tuple[int, float]],
    key: tuple[str, int],
    count: int,
    start: float,
    now: float,
    measured: Measured,
) -> None:
    """Enter the tokens that a completion has more than when it was last looked at."""
    before, last = told.get(key, (0, start))
    for at in range(before, count):
        (measured.itl if at else measured.ttft).append((now - last) if at == before else 0.0)
    if count > before:
        told[key] = count, now


def results_of(measured: Measured) -> dict[str, Any]:
    """The result file: upstream/vllm/benchmarks/latency.py:164 — "results = {"."""
    latencies = np.array(measured.latencies)
    percentiles = np.percentile(latencies, PERCENTAGES).tolist()
    return {
        "avg_latency": float(latencies.mean()),
        "latencies": latencies.tolist(),
        "percentiles": dict(zip(PERCENTAGES, percentiles, strict=True)),
    }


def write(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write the result file, where one is asked for."""
    if args.output_json:
        Path(args.output_json).write_text(json.dumps(clear_inf(results), indent=4) + "\n", encoding="utf-8")
        rest = {name: results[name] for name in ("avg_latency", "percentiles")}
        save_to_pytorch_benchmark_format(args, {"latency": results["latencies"]}, rest, args.output_json)
