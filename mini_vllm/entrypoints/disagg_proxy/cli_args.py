"""Flags of the proxy."""

# ruff: noqa: RUF009

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from mini_vllm.entrypoints.constants import H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT
from mini_vllm.entrypoints.disagg_proxy.instances import ROUTINGS, parse_url
from mini_vllm.entrypoints.disagg_proxy.serving import PREFILL_FAILURE_POLICIES
from mini_vllm.entrypoints.openai.cli_args import LOG_LEVELS, add_flags, cli_flag
from mini_vllm.utils.checks import require

DESCRIPTION = (
    "Stand before prefill and decode engines: each prompt to one of the first, each request to one of the second."
)


@dataclass
class ProxyArgs:
    """Upstream's proxies have the first four, under these names in
    upstream/examples/disaggregated/disaggregated_serving/disagg_proxy_demo.py:10 — "localhost:8100 localhost:8101".
    """

    prefill: list[str] = cli_flag([], "Prefill engines, HOST:PORT or a URL each.", nargs="+")
    decode: list[str] = cli_flag([], "Decode engines, HOST:PORT or a URL each.", nargs="+", required=True)
    host: str | None = cli_flag("127.0.0.1", "Address to listen on.")
    port: int = cli_flag(8000, "Port to listen on.")
    routing: str = cli_flag("round_robin", "Whose turn it is.", choices=ROUTINGS)
    max_attempts: int = cli_flag(2, "Engines of a kind that are asked for one request.")
    prefill_failure_policy: str = cli_flag(
        "recompute", "Where no prefill engine could do it: the decode engine computes the prompt, or an error.",
        choices=PREFILL_FAILURE_POLICIES,
    )  # fmt: skip
    prefill_timeout: float = cli_flag(600.0, "Seconds that a prefill engine has for a prompt.")
    decode_timeout: float = cli_flag(600.0, "Seconds that a decode engine may be silent.")
    health_interval: float = cli_flag(1.0, "Seconds between two questions for an engine's health.")
    health_timeout: float = cli_flag(5.0, "Seconds after which an engine that does not answer them is down.")
    min_prompt_chars: int = cli_flag(0, "Shorter prompts (characters of JSON) are left to the decode engine.")
    max_request_body_size: int = cli_flag(H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT, "Bytes of a body; 0: no bound.")
    max_concurrent_requests: int = cli_flag(0, "Requests at a time, further ones get 429; 0: no bound.")
    shutdown_timeout: float = cli_flag(
        0.0, "Seconds that running requests have after SIGTERM; 0: as long as they take."
    )
    uvicorn_log_level: str = cli_flag("info", "What uvicorn logs.", choices=LOG_LEVELS)
    disable_uvicorn_access_log: bool = cli_flag(False, "No line per request in the log.")


def parse_proxy_args(words: list[str]) -> argparse.Namespace:
    """The flags. Raises ValueError, which names flag and value, or SystemExit."""
    parser = argparse.ArgumentParser(prog="mini-vllm disagg-proxy", description=DESCRIPTION)
    add_flags(parser, ProxyArgs)
    args = parser.parse_args(words)
    for role in ("prefill", "decode"):
        urls = [parse_url(f"--{role}", url) for url in getattr(args, role)]
        require(len(set(urls)) == len(urls), f"--{role}", urls, "each engine once")
    both = sorted({*args.prefill} & {*args.decode})
    require(not both, "--decode", both, "engines that are not under --prefill, too")
    for name in ("prefill_timeout", "decode_timeout", "health_interval", "health_timeout"):
        value = getattr(args, name)
        require(math.isfinite(value) and value > 0, f"--{name.replace('_', '-')}", value, "seconds above 0")
    require(args.max_attempts >= 1, "--max-attempts", args.max_attempts, "at least 1")
    for name in ("min_prompt_chars", "max_request_body_size", "max_concurrent_requests", "shutdown_timeout"):
        value = getattr(args, name)
        require(math.isfinite(value) and value >= 0, f"--{name.replace('_', '-')}", value, "at least 0")
    return args
