"""From the times of requests to the numbers of a result file: means, medians, percentiles, goodput.

Upstream twin: `vllm/benchmarks/serve.py`, whose field names and formulas these are. The simulator counts with them too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
SLO_NAMES = ("ttft", "tpot", "e2el")
"""What a goodput may be asked for; a request has many gaps between tokens, so not "itl"."""
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")
"""Fields with one entry a request: in the file only with `--save-detailed`."""


@dataclass
class Statistics:
    """Of one metric, in milliseconds. percentiles: (p, value)."""

    mean: float
    median: float
    std: float
    percentiles: list[tuple[float, float]]

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> Statistics:
        """0 where there is no value, as upstream."""
        values = np.asarray(seconds if len(seconds) else [0.0])
        ranks = [(p, float(np.percentile(values, p)) * 1000) for p in percentiles]
        mean, median, std = (float(kind(values)) * 1000 for kind in (np.mean, np.median, np.std))
        return cls(mean, median, std, ranks)


@dataclass
class BenchmarkMetrics:
    """Upstream: upstream/vllm/benchmarks/serve.py:175 — `BenchmarkMetrics`; times by metric here, in fields there."""

    completed: int
    failed: int
    total_input: int
    total_output: int
    request_throughput: float
    request_goodput: float
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    times: dict[str, Statistics]


def parse_goodput(pairs: Sequence[str] | None) -> dict[str, float]:
    """["ttft:800", "tpot:30"] -> {"ttft": 800.0, "tpot": 30.0}, in milliseconds. Raises ValueError.

    Upstream: upstream/vllm/benchmarks/serve.py:1152 — `parse_goodput`.
    """
    found: dict[str, float] = {}
    for pair in pairs or ():
        name, _, value = pair.partition(":")
        try:
            found[name] = float(value)
        except ValueError:
            raise ValueError(
                'Invalid format found for service level objectives. Specify them as "KEY:VALUE" pairs, where the key '
                f"is a metric name, and the value is a number in milliseconds, got {pair!r}"
            ) from None
        if name not in SLO_NAMES:
            raise ValueError(
                f"Invalid metric name found, {name}: {found[name]}. The service level objective name should be one of "
                f"{list(SLO_NAMES)}."
            )
        if not found[name] >= 0:
            raise ValueError(f"Invalid value found, {name}: {found[name]}. The value should be non-negative.")
    return found


def calculate_metrics(
    outputs: Sequence[RequestFuncOutput],
    dur_s: float,
    selected_percentiles: Sequence[float],
    goodput: dict[str, float] | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> tuple[BenchmarkMetrics, list[int]]:
    """The metrics of a run, and the tokens of each answer (0 where it failed).

    Args:
        dur_s: from the first request to the last answer. goodput: milliseconds that a request must keep.
        count_tokens: of a text, for servers that send no usage; without it such an answer counts as one token.

    A request's TPOT leaves its first token out; one of a single token has none, and keeps every limit on it.
    Upstream: upstream/vllm/benchmarks/serve.py:396 — `calculate_metrics`.
    """
    good = [output for output in outputs if output.success]
    if not good:
        warnings.warn("All requests failed. This is likely due to a misconfiguration on the benchmark arguments.")
    lens = [_output_len(output, count_tokens) if output.success else 0 for output in outputs]
    good_lens = [n for output, n in zip(outputs, lens, strict=True) if output.success]
    tpots = [(o.latency - o.ttft) / (n - 1) if n > 1 else 0.0 for o, n in zip(good, good_lens, strict=True)]
    seconds = {
        "ttft": [output.ttft for output in good],
        "tpot": [tpot for tpot, n in zip(tpots, good_lens, strict=True) if n > 1],
        "itl": [gap for output in good for gap in output.itl],
        "e2el": [output.latency for output in good],
    }
    per_request = {**seconds, "tpot": tpots}
    limits = [(per_request[name], ms / 1000) for name, ms in (goodput or {}).items()]
    kept = sum(all(values[i] <= limit for values, limit in limits) for i in range(len(good))) if limits else 0
    total_input, total_output = sum(output.prompt_len for output in good), sum(lens)
    peak_tokens, peak_requests = _peaks(good)
    metrics = BenchmarkMetrics(
        completed=len(good),
        failed=len(outputs) - len(good),
        total_input=total_input,
        total_output=total_output,
        request_throughput=len(good) / dur_s,
        request_goodput=kept / dur_s,
        output_throughput=total_output / dur_s,
        total_token_throughput=(total_input + total_output) / dur_s,
        max_output_tokens_per_s=peak_tokens,
        max_concurrent_requests=peak_requests,
        times={name: Statistics.of(values, selected_percentiles) for name, values in seconds.items()},
    )
    return metrics, lens


def _output_len(output: RequestFuncOutput, count_tokens: Callable[[str], int] | None) -> int:
    if output.output_tokens:
        return output.output_tokens
    return count_tokens(output.generated_text) if count_tokens is not None else 1


def _peaks(good: Sequence[RequestFuncOutput]) -> tuple[float, int]:
    """Most stream events in a second, and most requests in one, in seconds counted from the first start."""
    if not good:
        return 0.0, 0
    start = min(output.start_time for output in good)
    seconds = int(np.ceil(max(output.start_time + output.latency for output in good) - start)) + 1
    tokens, requests = np.zeros(seconds), np.zeros(seconds)
    for output in good:
        began = output.start_time - start
        at = (began + np.cumsum([output.ttft, *output.itl])).astype(int)
        np.add.at(tokens, at[(at >= 0) & (at < seconds)], 1)
        requests[int(began) : int(began + output.latency) + 1] += 1
    return float(tokens.max()), int(requests.max())


def result_fields(
    metrics: BenchmarkMetrics, outputs: Sequence[RequestFuncOutput], lens: Sequence[int], dur_s: float, goodput: bool
) -> dict[str, Any]:
    """The fields of a result file but for times: upstream/vllm/benchmarks/serve.py:988 — "duration"."""
    return {
        "duration": dur_s,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput if goodput else None,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "input_lens": [output.prompt_len for output in outputs],
        "output_lens": list(lens),
        "ttfts": [output.ttft for output in outputs],
        "itls": [output.itl for output in outputs],
        "start_times": [output.start_time for output in outputs],
        "generated_texts": [output.generated_text for output in outputs],
        "errors": [output.error for output in outputs],
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
        "rtfx": 0.0,
    }


def time_fields(metrics: BenchmarkMetrics, selected: Sequence[str]) -> dict[str, float]:
    """`mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, `p99_ttft_ms` and so on, of the metrics asked for."""
    found: dict[str, float] = {}
    for name in (name for name in METRICS if name in selected):
        times = metrics.times[name]
        found |= {f"mean_{name}_ms": times.mean, f"median_{name}_ms": times.median, f"std_{name}_ms": times.std}
        found |= {f"p{percentile_word(p)}_{name}_ms": value for p, value in times.percentiles}
    return found


def percentile_word(p: float) -> str:
    """99.0 -> "99", 99.9 -> "99.9"."""
    return str(int(p)) if int(p) == p else str(p)


def report(metrics: BenchmarkMetrics, result: dict[str, Any], settings: dict[str, Any], selected: Sequence[str]) -> str:
    """The lines that upstream prints. settings: more of them by name, None is left out."""
    rows: list[tuple[str, float | int | None]] = [
        ("Successful requests:", metrics.completed),
        ("Failed requests:", metrics.failed),
        *settings.items(),
        ("Benchmark duration (s):", float(result["duration"])),
        ("Total input tokens:", metrics.total_input),
        ("Total generated tokens:", metrics.total_output),
        ("Request throughput (req/s):", metrics.request_throughput),
        ("Request goodput (req/s):", result["request_goodput"]),
        ("Output token throughput (tok/s):", metrics.output_throughput),
        ("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s),
        ("Peak concurrent requests:", float(metrics.max_concurrent_requests)),
        ("Total token throughput (tok/s):", metrics.total_token_throughput),
    ]
    lines = [f"{' Serving Benchmark Result ':=^50}", *(_line(*row) for row in rows if row[1] is not None)]
    for name, (short, header) in METRICS.items():
        if name not in selected:
            continue
        times = metrics.times[name]
        lines += [f"{header:-^50}", _line(f"Mean {short} (ms):", times.mean)]
        lines.append(_line(f"Median {short} (ms):", times.median))
        lines += [_line(f"P{percentile_word(p)} {short} (ms):", value) for p, value in times.percentiles]
    return "\n".join([*lines, "=" * 50])


def _line(name: str, value: float | int | None) -> str:
    return f"{name:<40} {value:<10.2f}" if isinstance(value, float) else f"{name:<40} {value:<10}"
