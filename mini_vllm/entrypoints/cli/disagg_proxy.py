"""`mini-vllm disagg-proxy`: one address in front of prefill and decode engines."""

from __future__ import annotations

import typer

from mini_vllm.entrypoints.cli import common as c
from mini_vllm.entrypoints.cli.serve import set_up_logging


@c.reports_errors
def disagg_proxy(context: typer.Context) -> None:
    """One address for prefill and decode engines: --prefill HOST:PORT … --decode HOST:PORT … (extra `serve`)."""
    from mini_vllm.entrypoints.disagg_proxy.api_server import run_proxy
    from mini_vllm.entrypoints.disagg_proxy.cli_args import parse_proxy_args

    args = parse_proxy_args(context.args)
    set_up_logging(args.uvicorn_log_level)
    run_proxy(args)
