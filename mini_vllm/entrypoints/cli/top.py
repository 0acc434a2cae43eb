"""`mini-vllm top`: a server as it lives: queues, KV usage, hit rate, tokens a second, waits. Ours, or vLLM's.

Everything comes from `/metrics`; rates are differences between two readings. Upstream has no twin; the log line of
upstream/vllm/v1/metrics/loggers.py:217 — `LoggingStatLogger.log` says part of it.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from mini_vllm.entrypoints.cli import common as c
from mini_vllm.metrics.text_format import MetricsText, quantile

Url = Annotated[str, typer.Option("--url", help="The server.")]
Interval = Annotated[float, typer.Option("--interval", help="Seconds between two readings.", min=0.1)]
Once = Annotated[bool, typer.Option("--once", help="Two readings, one table, no screen.")]

HISTOGRAMS = {
    "time to first token": "vllm:time_to_first_token_seconds",
    "between tokens": "vllm:inter_token_latency_seconds",
    "in the queue": "vllm:request_queue_time_seconds",
    "whole request": "vllm:e2e_request_latency_seconds",
}
WIDTH = 30
"""Of the little curves: so many of the last readings."""


@dataclass
class Reading:
    """One look at `/metrics`. at: seconds on the caller's clock."""

    at: float
    text: MetricsText

    def total(self, name: str) -> float:
        """The sum over engines; 0 where there is none."""
        return self.text.total(name) or 0.0

    def buckets(self, name: str) -> dict[float, float]:
        """A histogram, engines together: upper limit -> how many are at most that."""
        found: dict[float, float] = {}
        for labels, value in self.text.each(f"{name}_bucket"):
            limit = float(labels["le"].replace("+Inf", "inf"))
            found[limit] = found.get(limit, 0.0) + value
        return found


@dataclass
class View:
    """What the last two readings say together, and the curves of those before."""

    curves: dict[str, list[float]] = field(default_factory=dict)
    before: Reading | None = None

    def rows(self, now: Reading) -> list[tuple[str, str, str]]:
        """(name, value, curve); takes in `now`."""
        before = self.before or now
        self.before = now
        seconds = max(now.at - before.at, 1e-9) if before is not now else float("inf")

        def rate(name: str) -> float:
            return max(0.0, now.total(name) - before.total(name)) / seconds

        queries = rate("vllm:prefix_cache_queries")
        hits = rate("vllm:prefix_cache_hits") / queries if queries else 0.0
        whole = now.total("vllm:prefix_cache_queries")
        ever = now.total("vllm:prefix_cache_hits") / whole if whole else 0.0
        usage = now.total("vllm:kv_cache_usage_perc") / max(1, len(list(now.text.each("vllm:kv_cache_usage_perc"))))
        values = {
            "running": (now.total("vllm:num_requests_running"), "{:.0f}"),
            "waiting": (now.total("vllm:num_requests_waiting"), "{:.0f}"),
            "KV cache used": (usage, "{:.1%}"),
            "prefix cache hits": (hits, "{:.1%}" + f" (ever {ever:.1%})"),
            "prompt tokens/s": (rate("vllm:prompt_tokens"), "{:,.0f}"),
            "output tokens/s": (rate("vllm:generation_tokens"), "{:,.0f}"),
            "requests/s": (rate("vllm:request_success"), "{:.2f}"),
            "preemptions/s": (rate("vllm:num_preemptions"), "{:.2f}"),
        }
        found = [(name, form.format(value), self._curve(name, value)) for name, (value, form) in values.items()]
        return found + [self._wait(name, metric, now, before) for name, metric in HISTOGRAMS.items()]

    def _curve(self, name: str, value: float) -> str:
        kept = self.curves.setdefault(name, [])
        kept.append(value)
        del kept[:-WIDTH]
        top = max(kept)
        return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * each / top))] if top else "▁" for each in kept)

    def _wait(self, name: str, metric: str, now: Reading, before: Reading) -> tuple[str, str, str]:
        """Median and p99 of what ended since the reading before; of everything so far where nothing did."""
        new, old = now.buckets(metric), before.buckets(metric)
        recent = [(limit, new[limit] - old.get(limit, 0.0)) for limit in sorted(new)]
        if not recent or not recent[-1][1]:
            recent = sorted(new.items())
        found = [quantile(recent, share) for share in (0.5, 0.99)]
        if None in found:
            return name, "–", ""
        p50, p99 = (f"{1000 * value:,.1f}" for value in found if value is not None)
        return name, f"p50 {p50} ms, p99 {p99} ms", ""


def read(url: str) -> Reading:
    """Raises ValueError where nobody answers, or where the answer is none of vLLM's metrics."""
    address = f"{url.rstrip('/')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            text = MetricsText.parse(response.read().decode("utf-8", errors="replace"))
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(f"no metrics at {address}: {reason}. Is a server running there? (`mini-vllm serve`)") from None
    if not text.has("vllm:"):
        raise ValueError(f"{address} has metrics, but none of vLLM's")
    return Reading(time.monotonic(), text)


def table_of(rows: list[tuple[str, str, str]], title: str) -> Table:
    """What is shown."""
    table = Table("", "now", "before", title=title)
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*row)
    return table


@c.reports_errors
def top(
    url: Url = "http://127.0.0.1:8000", interval: Interval = 1.0, once: Once = False, debug: c.Debug = False
) -> None:
    """A server as it lives: queues, KV usage, hit rate, tokens a second, waits. Ctrl-C leaves."""
    watch(lambda: read(url), url, interval, once, c.out())


def watch(look: Callable[[], Reading], url: str, interval: float, once: bool, console: Any) -> None:
    """Look again and again, until Ctrl-C or until the server is gone; twice with `once`."""
    view = View()
    rows = view.rows(look())
    if once:
        time.sleep(interval)
        console.print(table_of(view.rows(look()), url))
        return
    with Live(table_of(rows, url), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(table_of(view.rows(look()), url), refresh=True)
