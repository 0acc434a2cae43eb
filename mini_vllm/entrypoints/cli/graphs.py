"""The tables of `mini-vllm bench --cudagraph-mode`: what the graphs of a workload did, and what they cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from mini_vllm.entrypoints.cli import common as c

CudagraphMode = Annotated[
    str | None,
    typer.Option(
        "--cudagraph-mode",
        help="Simulated CUDA graphs: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE.",
        show_default="NONE",
    ),
]
CaptureSizes = Annotated[
    str | None,
    typer.Option("--cudagraph-capture-sizes", help="Sizes to capture, e.g. 1,2,4,8.", show_default="vLLM's ladder"),
]
Metrics = Annotated[
    bool, typer.Option("--cudagraph-metrics", help="Also the table that real vLLM logs under this name.")
]


def print_graphs(llm: Any, metrics: bool = False) -> None:
    """The tables, where the engine has graphs; with `metrics` also the one that real vLLM logs."""
    graphs = llm.llm_engine.engine_core.model_runner.graphs
    if graphs is None:
        return
    console = c.out()
    console.print(steps_table(graphs))
    console.print(cost_table(graphs))
    if metrics:
        console.out(graphs.stats.metric_table(graphs.mode.name, graphs.dispatcher.capture_sizes))


def steps_table(graphs: Any) -> Table:
    """A row for each graph that was replayed, and one for the steps without."""
    stats = graphs.stats
    table = Table("runtime mode", "size", "steps", "tokens", "padding", "launches a step", title="steps by graph")
    for column in table.columns[1:]:
        column.justify = "right"
    for mode, size, steps, tokens, padding in stats.by_size():
        launches = graphs.launches.in_mode(type(graphs.mode)[mode])
        row = (size or "–", steps, f"{tokens:,}", f"{padding:,}", launches)
        table.add_row("NONE (no graph)" if mode == "NONE" else mode, *map(str, row))
    table.add_section()
    table.add_row("all", "", str(stats.num_steps), f"{stats.num_tokens:,}", f"{stats.num_paddings:,}", "")
    return table


def cost_table(graphs: Any) -> Table:
    """Totals of the workload, and what the start has cost."""
    stats, asked = graphs.stats, graphs.asked_mode
    captured = ", ".join(f"{mode} {count}" for mode, count in stats.num_captured.items()) or "none"
    sizes = graphs.dispatcher.capture_sizes
    memory, unshared = c.format_bytes(stats.memory_bytes), c.format_bytes(stats.unshared_bytes)
    rows = {
        "cudagraph mode": graphs.mode.name if graphs.mode == asked else f"{graphs.mode.name} (asked for {asked.name})",
        "attention backend": f"{graphs.backend_name} (support: {graphs.support.name})",
        "capture sizes": f"{len(sizes)}, up to {sizes[-1]}" if sizes else "none",
        "batches captured": f"{captured}; {stats.num_graphs} graphs",
        "memory": f"{memory} ({unshared} without a shared pool)",
        "padding": f"{stats.num_paddings:,} tokens, {stats.waste_fraction:.1%} of the real ones",
        "steps without a graph": f"{stats.num_steps_without_graph} of {stats.num_steps}",
        "launches": f"{stats.launches:,}; kernel by kernel {stats.eager_launches:,} ({stats.launch_ratio:.1f} times)",
    }
    table = Table("", "value", title="CUDA graphs (simulated)", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table
