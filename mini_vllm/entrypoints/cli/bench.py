"""`mini-vllm bench throughput | latency`: synthetic prompts, measured. Upstream twin: `vllm bench`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress
from rich.table import Table

from mini_vllm.entrypoints.cli import common as c
from mini_vllm.entrypoints.cli.graphs import CaptureSizes, CudagraphMode, Metrics, print_graphs

bench_app = typer.Typer(help="Measure throughput or latency on random prompts.", no_args_is_help=True)

InputLen = Annotated[int, typer.Option("--input-len", help="Tokens per prompt.", min=1)]
OutputLen = Annotated[int, typer.Option("--output-len", help="Tokens to generate per prompt; EOS is ignored.", min=1)]
BenchSeed = Annotated[int, typer.Option("--seed", help="Of the prompts.", min=0)]


@dataclass
class Measured:
    """Times in seconds. ttft: one a request; itl: one a token after the first, of all requests together."""

    seconds: float = 0.0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)


@bench_app.command()
@c.reports_errors
def throughput(
    model: c.Model = None,
    num_prompts: Annotated[int, typer.Option("--num-prompts", help="Requests, all there at the start.", min=1)] = 32,
    input_len: InputLen = 64,
    output_len: OutputLen = 64,
    seed: BenchSeed = 0,
    kv_memory: c.KVMemory = None,
    attention_backend: c.AttentionBackend = None,
    quantization: c.Quantization = None,
    kv_cache_dtype: c.KVCacheDtype = None,
    cudagraph_mode: CudagraphMode = None,
    cudagraph_capture_sizes: CaptureSizes = None,
    cudagraph_metrics: Metrics = False,
    engine: c.Engine = None,
    debug: c.Debug = False,
) -> None:
    """All requests at once: how many tokens a second?"""
    llm = load(
        model, engine, kv_memory, cudagraph_capture_sizes, attention_backend=attention_backend,
        cudagraph_mode=cudagraph_mode, quantization=quantization, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    prompts = random_prompts(llm, num_prompts, input_len, seed)
    warm_up(llm, 1, input_len, output_len, seed + 1)
    measured = run(llm, prompts, output_len, "throughput")
    table = Table("", "value", title=f"{num_prompts} requests, {input_len} in, {output_len} out", show_header=False)
    total = measured.num_input_tokens + measured.num_output_tokens
    table.add_row("time", f"{measured.seconds:.2f} s")
    table.add_row("requests/s", f"{num_prompts / measured.seconds:.2f}")
    table.add_row("output tokens/s", f"{measured.num_output_tokens / measured.seconds:.0f}")
    table.add_row("total tokens/s", f"{total / measured.seconds:.0f}")
    c.out().print(table)
    print_graphs(llm, cudagraph_metrics)


@bench_app.command()
@c.reports_errors
def latency(
    model: c.Model = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Requests at a time.", min=1)] = 1,
    num_iters: Annotated[int, typer.Option("--num-iters", help="Batches, one after the other.", min=1)] = 10,
    input_len: InputLen = 64,
    output_len: OutputLen = 64,
    seed: BenchSeed = 0,
    kv_memory: c.KVMemory = None,
    attention_backend: c.AttentionBackend = None,
    quantization: c.Quantization = None,
    kv_cache_dtype: c.KVCacheDtype = None,
    cudagraph_mode: CudagraphMode = None,
    cudagraph_capture_sizes: CaptureSizes = None,
    cudagraph_metrics: Metrics = False,
    engine: c.Engine = None,
    debug: c.Debug = False,
) -> None:
    """Batches one after the other: how long until the first token, between tokens, in all?"""
    llm = load(
        model, engine, kv_memory, cudagraph_capture_sizes, attention_backend=attention_backend,
        cudagraph_mode=cudagraph_mode, quantization=quantization, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    warm_up(llm, batch_size, input_len, output_len, seed)
    measured = Measured()
    for i in range(num_iters):
        prompts = random_prompts(llm, batch_size, input_len, seed + 1 + i)
        run(llm, prompts, output_len, f"batch {i + 1} of {num_iters}", measured)
    title = f"{num_iters} batches of {batch_size}, {input_len} in, {output_len} out (ms)"
    table = Table("", "mean", "p50", "p90", "p99", "max", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    names = {
        "time to first token": measured.ttft,
        "inter-token latency": measured.itl,
        "whole request": measured.latency,
    }
    for name, values in names.items():
        ms = np.array(values or [np.nan]) * 1000
        row = [ms.mean(), *np.percentile(ms, [50, 90, 99]), ms.max()]
        table.add_row(name, *(f"{x:.2f}" for x in row))
    c.out().print(table)
    print_graphs(llm, cudagraph_metrics)


def load(
    model: str | None, engine: list[str] | None, kv_memory: str | None, sizes: str | None, **args: str | None
) -> Any:
    """An `LLM` without prefix caching, which would find the prompts of the warm-up. args: engine arguments."""
    return c.load_llm(
        model,
        engine,
        kv_cache_memory_bytes=c.parse_bytes(kv_memory),
        enable_prefix_caching=False,
        cudagraph_capture_sizes=c.parse_sizes(sizes),
        **args,
    )


def warm_up(llm: Any, count: int, input_len: int, output_len: int, seed: int) -> None:
    """A few tokens, which are not counted."""
    run(llm, random_prompts(llm, count, input_len, seed), min(output_len, 4), "warm-up")
    if llm.llm_engine.stats.cudagraph is not None:
        llm.llm_engine.stats.cudagraph.reset()


def random_prompts(llm: Any, count: int, length: int, seed: int) -> list[dict[str, list[int]]]:
    """Prompts of random token ids."""
    ids = np.random.default_rng(seed).integers(0, llm.llm_engine.resolved_model.vocab_size, size=(count, length))
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def run(llm: Any, prompts: list[Any], output_len: int, what: str, measured: Measured | None = None) -> Measured:
    """Queue all prompts, step until all are done, add to `measured`. Raises ValueError where the lengths do not fit."""
    from mini_vllm.sampling_params import SamplingParams

    measured = measured or Measured()
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
    engine = llm.llm_engine
    processed = [engine.process_inputs(prompt, params) for prompt in prompts]
    start = time.perf_counter()
    last = {f"{what}-{i}": start for i in range(len(prompts))}
    for request_id, item in zip(last, processed, strict=True):
        engine.add_processed(request_id, item)
    with Progress(console=c.err(), disable=not c.err().is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=len(prompts) * output_len)
        first = set(last)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                (measured.ttft if output.request_id in first else measured.itl).append(now - last[output.request_id])
                first.discard(output.request_id)
                last[output.request_id] = now
                if output.finished:
                    measured.latency.append(now - start)
                    measured.num_output_tokens += len(output.outputs[0].token_ids)
                    measured.num_input_tokens += len(output.prompt_token_ids)
            progress.advance(task, len(outputs))
    measured.seconds += time.perf_counter() - start
    return measured
