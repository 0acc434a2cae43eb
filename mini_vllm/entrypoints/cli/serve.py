"""`mini-vllm serve`: the OpenAI-compatible server. Upstream twin: `vllm/entrypoints/cli/serve.py`."""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import Any

import typer

from mini_vllm.entrypoints.cli import common as c

DESCRIPTION = "Serve a model over HTTP, with OpenAI's API. Without a model: the checkpoint of the repository."


def parse_serve_args(words: list[str], batch: bool = False) -> argparse.Namespace:
    """The flags, those of `--config` below those of the command line. Raises ValueError, TypeError or SystemExit.

    Args:
        batch: of `run-batch`, which has two files besides.
    """
    from mini_vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    from mini_vllm.utils.argparse_utils import pull_args_from_config

    parser = make_arg_parser(argparse.ArgumentParser(prog="mini-vllm serve", description=DESCRIPTION))
    if batch:
        parser.prog, parser.description = "mini-vllm run-batch", "Answer a file of requests in OpenAI's batch format."
        parser.add_argument("-i", "--input-file", required=True, help="JSON lines: custom_id, method, url, body.")
        parser.add_argument("-o", "--output-file", required=True, help="Where the answers go.")
    args = parser.parse_args(pull_args_from_config(words, parser))
    validate_parsed_serve_args(args)
    args.structured_outputs_config = _with_reasoning_parser(args)
    tag = args.model_tag if args.model_tag is not None else args.model
    args.model = c.find_model(tag)
    if args.served_model_name is None:
        args.served_model_name = [c.TOY if args.model is None else tag or c.DEFAULT_MODEL]
    return args


def _with_reasoning_parser(args: argparse.Namespace) -> dict[str, Any] | None:
    """The grammars' settings; they wait for the end of the thinking that the server's parser knows, as upstream's."""
    config = args.structured_outputs_config
    names = ("reasoning_parser", "reasoning_parser_plugin")
    given = {name: getattr(args, name) for name in names if getattr(args, name)}
    return {**(config or {}), **given} if given else config


@c.reports_errors
def serve(context: typer.Context) -> None:
    """Serve a model over HTTP, with OpenAI's API (extra `serve`); --help names the flags."""
    args = parse_serve_args(context.args)
    set_up_logging(args.uvicorn_log_level)
    from mini_vllm.engine.exceptions import EngineDeadError

    if args.headless:
        _serve_headless(args)
    several = (args.api_server_count or 1) > 1
    dies = (EngineDeadError, RuntimeError) if several else (EngineDeadError,)
    try:
        _run(args, several)
    except dies as error:  # a process died: who it was is all there is to say
        c.err().print(f"error: {error}", style="bold red", markup=False)
        raise typer.Exit(1) from None


def _run(args: argparse.Namespace, several: bool) -> None:
    if several:
        from mini_vllm.entrypoints.api_server_processes import run_multi_api_server

        run_multi_api_server(args)
        return
    from mini_vllm.entrypoints.openai.api_server import run_server

    run_in_loop(run_server(args))


def _serve_headless(args: argparse.Namespace) -> None:
    """The ranks of this node, until the engine of node 0 ends. Never returns.

    Upstream: upstream/vllm/entrypoints/cli/serve.py:173 — `run_headless`.
    """
    from mini_vllm.engine.arg_utils import EngineArgs
    from mini_vllm.executor.headless import check_headless, run_headless
    from mini_vllm.model_loader.checkpoint import resolve_model

    engine_args = EngineArgs.from_cli_args(args)
    config = engine_args.create_engine_config()
    check_headless(config)
    resolved, _, _ = resolve_model(engine_args.model, None, config)
    raise typer.Exit(run_headless(config, resolved))


def run_in_loop(main: Any) -> None:
    """Run a coroutine to its end, in uvloop where it is there."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def set_up_logging(level: str) -> None:
    """As `--uvicorn-log-level` says."""
    names = {"trace": logging.DEBUG, "critical": logging.CRITICAL}
    logging.basicConfig(
        level=names.get(level, getattr(logging, level.upper(), logging.INFO)),
        format="%(levelname)s %(asctime)s %(name)s: %(message)s",
    )
