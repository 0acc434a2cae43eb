"""The command line: `mini-vllm generate | chat | serve | disagg-proxy | info | bench | top`.

Upstream twin: `vllm/entrypoints/cli/main.py`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer

    app: Typer


def make_app() -> Typer:
    """All commands together. What they need is imported here, so that Ctrl-C during the imports is caught, too."""
    import typer

    from mini_vllm.entrypoints.cli.bench import bench_app
    from mini_vllm.entrypoints.cli.chat import chat
    from mini_vllm.entrypoints.cli.common import LabsCommand
    from mini_vllm.entrypoints.cli.disagg_proxy import disagg_proxy
    from mini_vllm.entrypoints.cli.generate import generate
    from mini_vllm.entrypoints.cli.info import info
    from mini_vllm.entrypoints.cli.run_batch import run_batch
    from mini_vllm.entrypoints.cli.serve import serve
    from mini_vllm.entrypoints.cli.top import top

    made = typer.Typer(
        name="mini-vllm",
        help="A small engine with vLLM's architecture, in numpy. Without --model it runs the checkpoint of the "
        "repository.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    said = typer.Option(False, "--version", help="Say which version it is.", is_eager=True, callback=_say_version)

    @made.callback()
    def options(version: bool = said) -> None:
        pass

    made.command(cls=LabsCommand)(generate)
    made.command(cls=LabsCommand)(chat)
    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    made.command(context_settings=passed_on)(serve)
    made.command("run-batch", context_settings=passed_on)(run_batch)
    made.command("disagg-proxy", context_settings=passed_on)(disagg_proxy)
    made.command()(info)
    made.command()(top)
    made.add_typer(bench_app, name="bench")
    return made


def _say_version(wanted: bool) -> None:
    if wanted:
        from mini_vllm import __version__

        print(f"mini-vllm {__version__}")
        raise SystemExit(0)


def main() -> None:
    """Entry point of the `mini-vllm` script."""
    try:
        make_app()()
    except KeyboardInterrupt:
        sys.exit("interrupted")


def __getattr__(name: str) -> Typer:
    """`app`, made when it is first asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = make_app()
    return made


if __name__ == "__main__":
    main()
