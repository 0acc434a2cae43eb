"""Requests over HTTP, counted under the names that upstream's server has from prometheus_fastapi_instrumentator:
`upstream/vllm/entrypoints/serve/instrumentator/metrics.py`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric as Family
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.metrics.loggers import HistogramData

EXCLUDED = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
"""Paths that watchers ask for all the time."""
_FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0,
         60.0)  # fmt: skip
_COARSE = (0.1, 0.5, 1.0)


class HTTPMetrics:
    """Counts and times of requests; a collector for prometheus_client."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = defaultdict(int)
        self.request_sizes: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        self.response_sizes: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        self.fine = HistogramData(_FINE)
        self.coarse: dict[tuple[str, str], HistogramData] = defaultdict(lambda: HistogramData(_COARSE))

    def observe(self, handler: str, method: str, status: int, seconds: float, sizes: tuple[int, int]) -> None:
        """Count one request; `sizes` are bytes of its body and of its answer."""
        self.requests[handler, method, f"{status // 100}xx"] += 1
        for table, size in ((self.request_sizes, sizes[0]), (self.response_sizes, sizes[1])):
            table[handler][0] += 1
            table[handler][1] += size
        self.fine.observe(seconds)
        self.coarse[handler, method].observe(seconds)

    def collect(self) -> Iterator[Family]:
        """The families, in the instrumentator's order."""
        requests = CounterMetricFamily("http_requests", "Requests by method, status and handler.",
                                       labels=["handler", "method", "status"])  # fmt: skip
        for (handler, method, status), number in self.requests.items():
            requests.add_metric([handler, method, status], number)
        yield requests
        for name, table in (("request", self.request_sizes), ("response", self.response_sizes)):
            family = SummaryMetricFamily(f"http_{name}_size_bytes", f"Bytes of a {name}'s body.", labels=["handler"])
            for handler, (count, total) in table.items():
                family.add_metric([handler], int(count), total)
            yield family
        fine = HistogramMetricFamily("http_request_duration_highr_seconds", "Seconds of a request.")
        _add(fine, [], self.fine)
        yield fine
        coarse = HistogramMetricFamily("http_request_duration_seconds", "Seconds of a request, by handler.",
                                       labels=["handler", "method"])  # fmt: skip
        for labels, data in self.coarse.items():
            _add(coarse, list(labels), data)
        yield coarse


def _add(family: Any, labels: list[str], data: HistogramData) -> None:
    family.add_metric(labels, buckets=list(data.cumulative().items()), sum_value=data.sum)


class HTTPMetricsMiddleware:
    """Observes each request that is not `EXCLUDED`; a path without a route is "none"."""

    def __init__(self, app: ASGIApp, metrics: HTTPMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in EXCLUDED:
            await self.app(scope, receive, send)
            return
        begin, status, received, sent = time.perf_counter(), 500, 0, 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receiving, sending)
        finally:
            seconds = time.perf_counter() - begin
            handler = getattr(scope.get("route"), "path", "none")  # the router has written it there
            self.metrics.observe(handler, scope["method"], status, seconds, (received, sent))
