"""The command line: `mini-vllm generate | chat | info | bench`. Upstream twin: `vllm/entrypoints/cli/main.py`."""

from __future__ import annotations

import typer

from mini_vllm.entrypoints.cli.bench import bench_app
from mini_vllm.entrypoints.cli.chat import chat
from mini_vllm.entrypoints.cli.common import LabsCommand
from mini_vllm.entrypoints.cli.generate import generate
from mini_vllm.entrypoints.cli.info import info

app = typer.Typer(
    name="mini-vllm",
    help="A small engine with vLLM's architecture, in numpy. Without --model it runs the checkpoint of the repository.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=LabsCommand)(generate)
app.command(cls=LabsCommand)(chat)
app.command()(info)
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Entry point of the `mini-vllm` script."""
    app()
