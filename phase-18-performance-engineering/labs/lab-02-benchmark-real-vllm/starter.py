"""Lab 18-02: what runs against a live server say, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    raise NotImplementedError("the row of a result file")


def little_in_flight(rate: float, ttft_s: float, tpot_s: float, num_output: int) -> float:
    """How many requests are in the server at once on average, at `rate` requests a second.

    Args:
        ttft_s, tpot_s: mean seconds to the first token, and per token after it.
        num_output: tokens of an answer, at least 1.
    """
    raise NotImplementedError("how many requests are in the server at once on average")


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
    raise NotImplementedError("the highest of the offered rates that the server still takes")


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
    raise NotImplementedError("mean milliseconds of a request in each part of the server")


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
    raise NotImplementedError("whether the runs differ: higher, lower, or cannot tell")


def predicted_false_alarms() -> float:
    """Your prediction, made before you compute it. Somebody restarts a server without changing anything and calls it a
    new setting: two runs before, two after. He announces a change if both runs after lie on one side of both before.
    In what share of such experiments does he announce one?
    """
    raise NotImplementedError("your prediction: the share of experiments with a false announcement")


def report_problems(report: str) -> list[str]:
    """What a reviewer misses in a report in Markdown, in this order; an empty list where nothing.

    Returns:
        "no heading for S", for each of SECTIONS that no heading names (in any case, with other words around it);
        "no p99" where that word is nowhere; "no number of runs" where no number stands right before "runs".
    """
    raise NotImplementedError("what a reviewer misses in the report")
