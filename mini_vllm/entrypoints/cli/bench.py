"""`mini-vllm bench latency | throughput | serve | sweep`: options, tables; the measuring is `mini_vllm/benchmarks/`.

Upstream twin: `vllm bench`, whose option names these are; so argparse reads them, which knows lists of values.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from typing import Any

import numpy as np
import typer
from rich.table import Table

from mini_vllm.entrypoints.cli import common as c
from mini_vllm.entrypoints.cli.graphs import print_graphs

bench_app = typer.Typer(help="Measure an engine, or a server.", no_args_is_help=True)
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors, as those of the other commands."""

    def error(self, message: str) -> Any:
        """Raise what argparse would print and exit with."""
        raise ValueError(message)


def make_parser(command: str, description: str) -> OneLineParser:
    """A parser with `--debug`; no option may be shortened."""
    parser = OneLineParser(
        prog=f"mini-vllm bench {command}", description=description, allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    return parser


def add_engine_args(parser: argparse.ArgumentParser) -> None:
    """Upstream's options of the engine, and those that all our commands have."""
    from mini_vllm.engine.arg_utils import EngineArgs

    parser.add_argument("-m", dest="model", help="Folder or hub name; 'toy' = toy model.")
    parser.add_argument("-q", dest="quantization", help="Store weights as int8, int4, fp8 or nf4.")
    parser.add_argument("-E", "--engine", action="append", metavar="NAME=VALUE", help="Another engine argument.")
    parser.add_argument("--kv-memory", help="Memory of the KV cache, e.g. 512MiB or 2GiB.")
    parser.add_argument("--cudagraph-metrics", action="store_true", help="Also the table that real vLLM logs.")
    parser.add_argument("--profile", nargs="?", const="profile.json", metavar="FILE", help="Write a Perfetto trace.")
    EngineArgs.add_cli_args(parser)


def engine_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked of the engine, without the model."""
    from mini_vllm.engine.arg_utils import EngineArgs

    names = [each.name for each in dataclasses.fields(EngineArgs) if each.name != "model"]
    given = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    if isinstance(sizes := given.get("cudagraph_capture_sizes"), str | int):
        given["cudagraph_capture_sizes"] = c.parse_sizes(str(sizes))
    if args.kv_memory is not None:
        given["kv_cache_memory_bytes"] = c.parse_bytes(args.kv_memory)
    return given


def load(args: argparse.Namespace, **defaults: Any) -> Any:
    """The `LLM` that the options ask for."""
    return c.load_llm(args.model, args.engine, **{**defaults, **engine_kwargs(args)})


@bench_app.command(context_settings=_PASSED_ON)
@c.reports_errors
def latency(context: typer.Context) -> None:
    """Batches one after the other: how long until the first token, between tokens, in all?"""
    from mini_vllm.benchmarks import latency as bench
    from mini_vllm.profiler.wrapper import profile

    parser = make_parser("latency", "Batches one after the other: the first token, between tokens, in all.")
    bench.add_cli_args(parser)
    add_engine_args(parser)
    args = parser.parse_args(context.args)
    bench.check_args(args)
    llm = load(args, enable_prefix_caching=False)  # as upstream: random prompts, measured alone
    with profile(llm, args.profile):
        measured = bench.measure(llm, args)
    results = bench.results_of(measured)
    title = f"{args.num_iters} batches of {args.batch_size}, {args.input_len} in, {args.output_len} out (ms)"
    table = Table("", "mean", "p50", "p90", "p99", "max", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    names = {"time to first token": measured.ttft, "inter-token latency": measured.itl,
             "whole request": measured.request, "whole batch": measured.latencies}  # fmt: skip
    for name, values in names.items():
        ms = np.array(values or [np.nan]) * 1000
        table.add_row(name, *(f"{x:.2f}" for x in (ms.mean(), *np.percentile(ms, [50, 90, 99]), ms.max())))
    c.out().print(f"Avg latency: {results['avg_latency']:.4f} seconds")
    c.out().print(table)
    print_graphs(llm, args.cudagraph_metrics)
    bench.write(args, results)


@bench_app.command(context_settings=_PASSED_ON)
@c.reports_errors
def throughput(context: typer.Context) -> None:
    """All requests at once: how many tokens a second?"""
    from mini_vllm.benchmarks import throughput as bench
    from mini_vllm.profiler.wrapper import profile

    parser = make_parser("throughput", "All requests at once: how many tokens a second?")
    bench.add_cli_args(parser)
    add_engine_args(parser)
    args = parser.parse_args(context.args)
    bench.check_args(args)
    if args.async_engine:
        if args.profile is not None:
            raise ValueError("--profile goes with the engine that is not async")
        seconds, outputs = asyncio.run(_async_throughput(args))
    else:
        llm = load(args)
        requests, warmups = bench.samples_of(args, llm.get_tokenizer())
        if warmups:
            bench.run_vllm(llm, warmups, args)
        if llm.llm_engine.stats.cudagraph is not None:
            llm.llm_engine.stats.cudagraph.reset()
        with profile(llm, args.profile):
            seconds, outputs = bench.run_vllm(llm, requests, args)
        print_graphs(llm, args.cudagraph_metrics)
    _print_throughput(results := bench.results_of(seconds, outputs))
    bench.write(args, results)


async def _async_throughput(args: argparse.Namespace) -> tuple[float, list[Any]]:
    from mini_vllm.benchmarks import throughput as bench
    from mini_vllm.engine.async_llm import AsyncLLM

    engine = AsyncLLM(c.find_model(args.model), **engine_kwargs(args), **c.parse_engine_args(args.engine))
    try:
        requests, warmups = bench.samples_of(args, engine.get_tokenizer())
        if warmups:
            await bench.run_vllm_async(engine, warmups, args)
        return await bench.run_vllm_async(engine, requests, args)
    finally:
        engine.shutdown()


def _print_throughput(results: dict[str, Any]) -> None:
    seconds, count = results["elapsed_time"], results["num_requests"]
    num_input, num_output = results["num_prompt_tokens"], results["num_output_tokens"]
    per_request = f"{num_input / count:.0f} in, {num_output / count:.0f} out"
    table = Table("", "value", title=f"{count} requests, {per_request}", show_header=False)
    table.add_row("time", f"{seconds:.2f} s")
    table.add_row("requests/s", f"{results['requests_per_second']:.2f}")
    table.add_row("output tokens/s", f"{num_output / seconds:.0f}")
    table.add_row("total tokens/s", f"{results['tokens_per_second']:.0f}")
    c.out().print(table)


@bench_app.command(context_settings=_PASSED_ON)
@c.reports_errors
def serve(context: typer.Context) -> None:
    """A client of any OpenAI-compatible server: rates, first tokens, gaps, percentiles, goodput."""
    from mini_vllm.benchmarks import serve as bench

    parser = make_parser("serve", "A client of any OpenAI-compatible server; see also --help of the server.")
    bench.add_cli_args(parser)
    args = parser.parse_args(context.args)
    bench.main(args)


@bench_app.command(context_settings=_PASSED_ON)
@c.reports_errors
def sweep(context: typer.Context) -> None:
    """A server at rising load: where is the knee? Tables, result files, a picture."""
    from mini_vllm.benchmarks.sweep import serve_workload

    parser = make_parser("sweep", "A server at rising load, once for each of its settings: where is the knee?")
    serve_workload.add_cli_args(parser)
    words = context.args[1:] if context.args[:1] == ["serve_workload"] else context.args
    serve_workload.main(parser.parse_args(words))
