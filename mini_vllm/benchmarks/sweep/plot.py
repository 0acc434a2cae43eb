"""Where the knee is, and a picture of it. Upstream twin: `vllm/benchmarks/sweep/plot.py`, which draws with seaborn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Row:
    """One level of load, over all its runs.

    Attributes:
        load: requests a second that were offered, or requests at a time. rate: requests a second that were served.
        p99_ttft_ms, p99_itl_ms: medians over the runs. worst_ttft_ms: the largest p99 of a run.
    """

    load: float
    rate: float
    output_throughput: float
    p99_ttft_ms: float
    p99_itl_ms: float
    worst_ttft_ms: float


def rows_of(runs: Sequence[dict[str, Any]], variable: str) -> list[Row]:
    """The runs of one setting by load, lowest first; "inf" comes last."""
    by_load: dict[float, list[dict[str, Any]]] = {}
    for run in runs:
        by_load.setdefault(float(run[variable]), []).append(run)
    found = []
    for load, group in sorted(by_load.items()):
        names = ("request_throughput", "output_throughput", "p99_ttft_ms", "p99_itl_ms")
        rate, output, ttft, itl = (float(median(run[name] for run in group)) for name in names)
        found.append(Row(load, rate, output, ttft, itl, max(run["p99_ttft_ms"] for run in group)))
    return found


def knee(rows: Sequence[Row], factor: float = 3.0) -> float:
    """The last load before p99 TTFT is more than `factor` times what it is at the lowest load.

    Raises ValueError without rows.

    >>> [row.load for row in (rows := [Row(r, r, 0, t, 0, t) for r, t in ((4, 210), (8, 610), (12, 4900))])]
    [4, 8, 12]
    >>> knee(rows)
    8
    """
    if not rows:
        raise ValueError("a knee needs at least one load")
    last = rows[0].load
    for row in rows:
        if row.p99_ttft_ms > factor * rows[0].p99_ttft_ms:
            break
        last = row.load
    return last


def draw(rows: Sequence[Row], at: float, title: str, variable: str = "request_rate") -> str:
    """An SVG of two plots: what was served over what was offered, and p99 TTFT (logarithmic), with the knee marked."""
    from mini_vllm.utils.svg import DECODE, GREY, LOST, Axis, Plot

    rows = [row for row in rows if math.isfinite(row.load)]
    offered = "requests a second, offered" if variable == "request_rate" else "requests at a time"
    x = Axis(0, rows[-1].load * 1.05, _ticks(rows[-1].load), offered)
    top = max(row.rate for row in rows) * 1.15
    served = Plot(title, x, Axis(0, top, _ticks(top), "requests a second, served"), height=300)
    if variable == "request_rate":
        end = min(top, rows[-1].load)
        served.line([(0, 0), (end, end)], GREY, "4 4")
    times = [row.p99_ttft_ms for row in rows] + [row.worst_ttft_ms for row in rows]
    low, high = 10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times) * 1.01))
    marks = [(10.0**n, f"{10**n:g}") for n in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    waits = Plot("p99 time to first token, ms", x, Axis(low, high, marks, "ms", log=True), height=300)
    for plot, values in ((served, [row.rate for row in rows]), (waits, [row.p99_ttft_ms for row in rows])):
        points = [(row.load, value) for row, value in zip(rows, values, strict=True)]
        plot.line(points, DECODE)
        plot.points(points, DECODE)
        if math.isfinite(at):
            plot.line([(at, plot.y.low), (at, plot.y.high)], LOST, "5 3")
            plot.label((at, plot.y.high), f"knee {at:g}", LOST, 6, 14)
    return _stacked(str(served), str(waits), 720, 300)


def _ticks(high: float) -> list[tuple[float, str]]:
    """About five round marks from 0 to `high`."""
    step = 10 ** math.floor(math.log10(high / 5))
    step = next(step * k for k in (1, 2, 5, 10) if high / (step * k) <= 6)
    return [(i * step, f"{i * step:g}") for i in range(int(high / step) + 1)]


def _stacked(first: str, second: str, width: int, height: int) -> str:
    """Two pictures of one size, one above the other."""
    below = second.replace("<svg ", f'<svg y="{height}" ', 1)
    size = f'viewBox="0 0 {width} {2 * height}" width="{width}" height="{2 * height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{first}{below}</svg>\n'
