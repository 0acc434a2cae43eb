"""Lab 18-02: what runs against a live server say, and what they do not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

SECTIONS = ("workload", "machine", "settings", "results", "knee", "recommendation")
"""What a report must have a heading for."""


@dataclass(frozen=True)
class Row:
    """One run of the client. Given. Times in milliseconds; rates and throughputs per second.

    Attributes:
        rate: what was offered, requests.
        served: what was answered, requests.
        good: what was answered within the limits, requests.
        output_tokens, total_tokens: total counts prompts as well.
    """

    rate: float
    served: float
    good: float
    output_tokens: float
    total_tokens: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    tpot_p50: float


def parse_result(result: Mapping[str, Any]) -> Row:
    """The row of one result file of `vllm bench serve` (`--save-result --metric-percentiles 50,99`).

    Raises:
        ValueError: "the result has no KEY: run the client with --metric-percentiles 50,99", for the first percentile
            in the order of `Row`; "N of M requests failed: no percentile knows of them", M as the client sent them;
            "a run at rate inf has no offered rate".
    """
    if result["failed"]:
        raise ValueError(f"{result['failed']} of {result['num_prompts']} requests failed: no percentile knows of them")
    rate = float(result["request_rate"])
    if rate == float("inf"):
        raise ValueError("a run at rate inf has no offered rate")
    keys = ("p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms", "p50_tpot_ms")
    for key in keys:
        if key not in result:
            raise ValueError(f"the result has no {key}: run the client with --metric-percentiles 50,99")
    counts = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
    return Row(rate, *(result[key] for key in counts), *(result[key] for key in keys))


def little_in_flight(rate: float, ttft_s: float, tpot_s: float, num_output: int) -> float:
    """How many requests are in the server at once on average, at `rate` requests a second.

    Args:
        ttft_s, tpot_s: mean seconds to the first token, and per token after it.
        num_output: tokens of an answer, at least 1.
    """
    return rate * (ttft_s + tpot_s * (num_output - 1))


def find_knee(rows: Sequence[Row]) -> float:
    """The highest of the offered rates that the server still takes, judged by TTFT.

    Past the knee requests come faster than they are answered, so that the queue grows for as long as the run lasts.
    Where exactly you draw the line is yours to decide. What must hold: it is a rate of `rows`; every rate above a rate
    that is past the knee is past it too; a rate at which a request waits for several times as long as at the lowest
    one is past it, and one at which it waits hardly longer is not; several runs of a rate are one rate.

    Args:
        rows: in any order, several of the same rate allowed; left as they are. The lowest rate is taken to be below
            the knee.

    Raises:
        ValueError: "need at least two rates, got N".
    """
    by_rate: dict[float, list[float]] = {}
    for row in rows:
        by_rate.setdefault(row.rate, []).append(row.ttft_p99)
    if len(by_rate) < 2:
        raise ValueError(f"need at least two rates, got {len(by_rate)}")
    rates = sorted(by_rate)
    limit = 3.0 * median(by_rate[rates[0]])
    knee = rates[0]
    for rate in rates[1:]:
        if median(by_rate[rate]) > limit:
            break
        knee = rate
    return knee


def where_time_goes(server: Mapping[str, float]) -> dict[str, float]:
    """Mean milliseconds of a request in each part of the server, from the counters of `/metrics`.

    Args:
        server: growth of the counters during a run, names without `vllm:`; sums in seconds. The keys used are
            "time_to_first_token_seconds_sum" and "_count", "request_queue_time_seconds_sum",
            "request_prefill_time_seconds_sum" and "request_decode_time_seconds_sum".

    Returns:
        "front door" (from arrival until the scheduler has it, and the way back of the first token), "queue", "prefill",
        "decode". The first three are the TTFT.

    Raises:
        ValueError: "no request was answered".
    """
    count = server["time_to_first_token_seconds_count"]
    if not count:
        raise ValueError("no request was answered")
    parts = {part: server[f"request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode")}
    front = server["time_to_first_token_seconds_sum"] - parts["queue"] - parts["prefill"]
    return {part: 1e3 * seconds / count for part, seconds in {"front door": front, **parts}.items()}


def compare(before: Sequence[float], after: Sequence[float]) -> str:
    """Whether the runs after a change differ from those before it: "higher", "lower", or "cannot tell".

    The test is yours to decide. What must hold: where nothing was changed, it may say "higher" or "lower" in at most
    one experiment in ten, for any number of runs from two on. With five runs on either side it finds nine of ten
    changes that are four times as large as the spread of the runs (their standard deviation).

    Args:
        before, after: one number per run; not changed.

    Raises:
        ValueError: "need two runs or more on either side, got A and B".
    """
    if min(len(before), len(after)) < 2:
        raise ValueError(f"need two runs or more on either side, got {len(before)} and {len(after)}")
    pool, seen = [*before, *after], sum(after)
    sums = [sum(pool[i] for i in chosen) for chosen in itertools.combinations(range(len(pool)), len(after))]
    for word, extreme in (
        ("higher", sum(each >= seen - 1e-9 for each in sums)),
        ("lower", sum(each <= seen + 1e-9 for each in sums)),
    ):
        if extreme / len(sums) <= 0.05:
            return word
    return "cannot tell"


def predicted_false_alarms() -> float:
    """Your prediction, made before you compute it. Somebody restarts a server without changing anything and calls it a
    new setting: two runs before, two after. He announces a change if both runs after lie on one side of both before.
    In what share of such experiments does he announce one?
    """
    return 1 / 3


def report_problems(report: str) -> list[str]:
    """What a reviewer misses in a report in Markdown, in this order; an empty list where nothing.

    Returns:
        "no heading for S", for each of SECTIONS that no heading names (in any case, with other words around it);
        "no p99" where that word is nowhere; "no number of runs" where no number stands right before "runs".
    """
    heads = "\n".join(re.findall(r"^#+ (.*)$", report, re.M)).lower()
    problems = [f"no heading for {section}" for section in SECTIONS if section not in heads]
    if "p99" not in report.lower():
        problems.append("no p99")
    if not re.search(r"\d+ runs\b", report):
        problems.append("no number of runs")
    return problems
