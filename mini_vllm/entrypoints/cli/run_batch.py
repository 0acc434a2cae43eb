"""`mini-vllm run-batch`: a file of requests, answered into another.

Upstream twin: `vllm/entrypoints/cli/run_batch.py`.
"""

from __future__ import annotations

import asyncio

import typer

from mini_vllm.entrypoints.cli import common as c
from mini_vllm.entrypoints.cli.serve import parse_serve_args


@c.reports_errors
def run_batch(context: typer.Context) -> None:
    """Answer the requests of a file: -i INPUT.jsonl -o OUTPUT.jsonl, then the flags of `serve` (extra `serve`)."""
    args = parse_serve_args(context.args, batch=True)
    from mini_vllm.entrypoints.openai.run_batch import main

    answers = asyncio.run(main(args))
    failed = sum(answer.error is not None for answer in answers)
    c.err().print(f"{len(answers)} requests, {failed} of them with errors: {args.output_file}")
