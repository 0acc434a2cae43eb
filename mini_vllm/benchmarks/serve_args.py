"""The options of `mini-vllm bench serve`, by upstream's names, and what is checked of them.

Upstream twin: `vllm/benchmarks/serve.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from pathlib import Path

from mini_vllm.benchmarks.datasets.datasets import add_dataset_parser
from mini_vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS
from mini_vllm.benchmarks.serve_metrics import METRICS

SAMPLING = ("top_p", "top_k", "min_p", "temperature", "frequency_penalty", "presence_penalty", "repetition_penalty")
_FLAGS = {
    "disable-tqdm": "Show no progress bar.",
    "profile": "Have the server profile itself; it must allow that.",
    "save-result": "Write the results to a JSON file.",
    "save-detailed": "Write what every request took and said, too.",
    "append-result": "Append to the file instead of writing it anew.",
    "ignore-eos": "Let every answer have its full length (always so with random).",
    "skip-tokenizer-init": "Load no tokenizer; the dataset must not need one.",
    "insecure": "Do not check the server's certificate.",
}
_TEXTS = {
    "label": (None, "Begins the result file's name; by default the backend."),
    "base-url": (None, "In place of host and port."),
    "host": ("127.0.0.1", "Where the server is."),
    "endpoint": ("/v1/completions", "Its route."),
    "model": (None, "By default the first that /v1/models names."),
    "served-model-name": (None, "The model's name in requests, where it is another."),
    "tokenizer": (None, "A folder or a hub name, where it is not the model's."),
    "result-dir": (None, "Where the result file goes."),
    "result-filename": (None, "Its name; by default LABEL-RATEqps-MODEL-DATE.json."),
    "percentile-metrics": (None, f"Some of {','.join(METRICS)}; by default ttft,tpot,itl (embeddings: e2el)."),
    "metric-percentiles": ("99", "Which percentiles, such as 50,90,99."),
    "request-id-prefix": (f"bench-{uuid.uuid4().hex[:8]}-", "Before the number of a request."),
}


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Add all options. Those of upstream that concern images, sound or other servers are not here.

    Upstream: upstream/vllm/benchmarks/serve.py:1246 — `add_cli_args`.
    """
    add_dataset_parser(parser, num_prompts=100)
    parser.add_argument("--backend", choices=list(ASYNC_REQUEST_FUNCS), default="openai", help="The server's API.")
    parser.add_argument("--port", type=int, default=8000)
    for name, help_text in _FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=help_text)
    for name, (default, help_text) in _TEXTS.items():
        parser.add_argument(f"--{name}", default=default, help=help_text)
    for name in ("input-len", "output-len"):
        parser.add_argument(f"--{name}", type=int, help=f"Sets the --…-{name} of every dataset.")
    parser.add_argument("--header", nargs="*", metavar="KEY=VALUE", help="Headers of every request.")
    parser.add_argument("--metadata", nargs="*", metavar="KEY=VALUE", help="Fields to write into the result file.")
    parser.add_argument("--goodput", nargs="+", metavar="KEY:MS", help="Limits of a good request: ttft:800 tpot:30.")
    parser.add_argument("--extra-body", type=json.loads, help="JSON that every request sends.")
    parser.add_argument("--logprobs", type=int, help="Log-probabilities for each token.")
    parser.add_argument("--lora-modules", nargs="+", help="Adapters; each request asks for one.")
    parser.add_argument("--lora-assignment", choices=["random", "round-robin"], default="random")
    for name in SAMPLING:
        kind = int if name == "top_k" else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="Sampling; unset: the server's own.")
    _add_traffic_args(parser)


def _add_traffic_args(parser: argparse.ArgumentParser) -> None:
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument("--request-rate", type=float, default=float("inf"), help="A second; inf: all at once.")
    traffic.add_argument("--burstiness", type=float, default=1.0, help="1: Poisson; below: bursts; above: more even.")
    traffic.add_argument("--max-concurrency", type=int, help="At most so many requests at a time.")
    traffic.add_argument("--num-warmups", type=int, default=0, help="Requests before those that count.")
    traffic.add_argument("--ready-check-timeout-sec", type=int, default=0, help="Wait so long for the server.")
    traffic.add_argument("--ramp-up-strategy", choices=["linear", "exponential"], help="Grow the rate over the run.")
    traffic.add_argument("--ramp-up-start-rps", type=int)
    traffic.add_argument("--ramp-up-end-rps", type=int)


def check_args(args: argparse.Namespace) -> None:
    """Raise ValueError for options that do not go together; set what one implies of another.

    Upstream: upstream/vllm/benchmarks/serve.py:1637 — `main_async`.
    """
    _check_ramp(args)
    if not args.request_rate > 0 or not args.burstiness > 0:
        raise ValueError(f"request_rate and burstiness must be above 0, got {args.request_rate}, {args.burstiness}")
    if args.max_concurrency is not None and args.max_concurrency < 1:
        raise ValueError(f"max_concurrency must be at least 1, got {args.max_concurrency}")
    for prefix in ("random", "sharegpt", "custom", "prefix_repetition", "conversations", "json"):
        if args.output_len is not None:
            setattr(args, f"{prefix}_output_len", args.output_len)
    if args.input_len is not None:
        args.random_input_len = args.input_len
    if args.dataset_name == "random":
        args.ignore_eos = True
    unknown = set((args.percentile_metrics or "").split(",")) - {*METRICS, ""}
    if unknown:
        raise ValueError(f"percentile_metrics must be some of {','.join(METRICS)}, got {args.percentile_metrics!r}")
    try:
        args.selected_percentiles = [float(p) for p in str(args.metric_percentiles).split(",")]
    except ValueError:
        raise ValueError(f"metric_percentiles must be numbers, got {args.metric_percentiles!r}") from None
    if not all(0 <= p <= 100 for p in args.selected_percentiles):
        raise ValueError(f"metric_percentiles must lie in 0 to 100, got {args.metric_percentiles!r}")


def _check_ramp(args: argparse.Namespace) -> None:
    if args.ramp_up_strategy is None:
        return
    start, end = args.ramp_up_start_rps, args.ramp_up_end_rps
    if args.request_rate != float("inf"):
        raise ValueError("When using ramp-up, do not specify --request-rate: ramp-up sets the rate.")
    if start is None or end is None:
        raise ValueError(
            "When using --ramp-up-strategy, both --ramp-up-start-rps and --ramp-up-end-rps must be specified"
        )
    if not 0 <= start <= end:
        raise ValueError(f"ramp-up must go from a rate of at least 0 to one that is not lower, got {start} to {end}")
    if start == 0:
        raise ValueError("ramp_up_start_rps must be above 0: a first request would never leave at rate 0.")


def compute_result_filename(args: argparse.Namespace, model_id: str, current_dt: str) -> Path | None:
    """Where the result goes; None where none is asked for. The folder is made.

    Upstream: upstream/vllm/benchmarks/serve.py:1203 — `compute_result_filename`.
    """
    if not (args.save_result or args.append_result):
        return None
    label, model = args.label or args.backend, model_id.rstrip("/").split("/")[-1]
    concurrency = "" if args.max_concurrency is None else f"-concurrency{args.max_concurrency}"
    rate = f"{args.request_rate}qps"
    if args.ramp_up_strategy is not None:
        rate = f"ramp-up-{args.ramp_up_strategy}-{args.ramp_up_start_rps}qps-{args.ramp_up_end_rps}qps"
    name = args.result_filename or f"{label}-{rate}{concurrency}-{model}-{current_dt}.json"
    if args.result_dir:
        os.makedirs(args.result_dir, exist_ok=True)
    return Path(args.result_dir or ".") / name
