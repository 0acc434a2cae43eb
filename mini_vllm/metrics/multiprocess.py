"""Metrics of several API servers as one page. Upstream twin: `vllm/v1/metrics/prometheus.py`, which lets
prometheus_client keep every number in a file that all processes map (`PROMETHEUS_MULTIPROC_DIR`).

Here numbers are kept where they are counted, and written to such files every 0.1 seconds; whoever answers `/metrics`
waits for that long, then adds the files up. What the core counts is asked of the core, and stands in no file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from mini_vllm.logger import init_logger
from mini_vllm.metrics.prometheus import SnapshotCollector
from mini_vllm.metrics.reader import Counter, Histogram, Metric, get_metrics_snapshot
from mini_vllm.metrics.stats import SchedulerStats

logger = init_logger(__name__)
FLUSH_S = 0.1
_OF_THE_CORE = ("vllm:prefix_cache_", "vllm:external_", "vllm:mm_cache_", "vllm:num_preemptions", "vllm:spec_decode_")


@contextlib.contextmanager
def setup_multiprocess_prometheus() -> Iterator[str]:
    """The folder of the files, which ends with the block, unless the user has named one.

    Upstream: upstream/vllm/v1/metrics/prometheus.py:17 — `setup_multiprocess_prometheus`.
    """
    given = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if given is not None:
        logger.warning("PROMETHEUS_MULTIPROC_DIR is %s: empty it between runs, or their metrics add up", given)
        os.makedirs(given, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        try:
            yield folder
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]


class MultiprocessMetrics:
    """One API server's files in `folder`, and the page of all.

    Attributes:
        http: its `HTTPMetrics`, once there is an app.
    """

    def __init__(self, folder: str, engine: Any) -> None:
        self.folder, self.engine = folder, engine
        self.http: Any = None
        self._files: dict[str, MmapedDict] = {}
        self._written: dict[str, float] = {}

    def flush(self) -> None:
        """Write what has changed."""
        if self.engine.stat_logger is not None:
            mine = [each for each in get_metrics_snapshot(self.engine, SchedulerStats()) if not _of_the_core(each)]
            self.write(SnapshotCollector(mine).collect())
        if self.http is not None:
            self.write(self.http.collect())

    def write(self, families: Iterable[Family]) -> None:
        """Enter families of counters, histograms and summaries."""
        for family in families:
            for key, value in _values(family):
                if self._written.get(key) == value:
                    continue
                self._written[key] = value
                self._file(family.type).write_value(key, value, 0.0)

    def _file(self, kind: str) -> MmapedDict:
        if kind not in self._files:
            self._files[kind] = MmapedDict(os.path.join(self.folder, f"{kind}_{os.getpid()}.db"))
        return self._files[kind]

    def exposition(self, core_stats: Any) -> bytes:
        """The page: all servers' numbers added up, and the core's."""
        self.flush()
        registry = CollectorRegistry()
        if self.engine.stat_logger is not None:
            found = [each for each in get_metrics_snapshot(self.engine, core_stats) if _of_the_core(each)]
            registry.register(SnapshotCollector(found))  # type: ignore[arg-type]
        MultiProcessCollector(registry, path=self.folder)
        return generate_latest(registry)


def _of_the_core(metric: Metric) -> bool:
    return not isinstance(metric, Counter | Histogram) or metric.name.startswith(_OF_THE_CORE)


def _values(family: Family) -> Iterator[tuple[str, float]]:
    """(key, number) as the files have them: a bucket counts what is above the one below."""
    below: dict[tuple[str, ...], float] = {}
    for sample in family.samples:
        value = sample.value
        if sample.name.endswith("_bucket"):
            series = tuple(f"{name}={text}" for name, text in sample.labels.items() if name != "le")
            value, below[series] = value - below.get(series, 0.0), value
        elif family.type == "histogram" and sample.name.endswith("_count"):
            continue  # it is added up from the buckets
        names, texts = list(sample.labels), list(sample.labels.values())
        yield mmap_key(family.name, sample.name, names, texts, family.documentation), value
