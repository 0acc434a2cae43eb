"""How many transfers there were, how large and how long. Upstream twin:
`vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorWorkerMetadata
from mini_vllm.metrics.loggers import HistogramData

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)
_COUNTERS = ("num_failed_transfers", "num_failed_notifications", "num_kv_expired_reqs")


@dataclass
class NixlKVConnectorStats(KVConnectorWorkerMetadata):
    """What a rank has seen since it said so last.

    Attributes:
        transfer_duration: seconds of each load that went well, on D. bytes_transferred, num_descriptors: likewise; a
            descriptor is a block of one layer on P. num_failed_transfers, num_failed_notifications: of D.
        num_kv_expired_reqs: of P, whose leases ran out before anybody had read the blocks.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py:25 — `NixlKVConnectorStats`, which
    has the time until a transfer is posted, too.
    """

    transfer_duration: list[float] = field(default_factory=list)
    bytes_transferred: list[int] = field(default_factory=list)
    num_descriptors: list[int] = field(default_factory=list)
    num_failed_transfers: int = 0
    num_failed_notifications: int = 0
    num_kv_expired_reqs: int = 0

    def record_transfer(self, seconds: float, num_bytes: int, num_descriptors: int) -> None:
        """One more."""
        self.transfer_duration.append(seconds)
        self.bytes_transferred.append(num_bytes)
        self.num_descriptors.append(num_descriptors)

    @property
    def num_successful_transfers(self) -> int:
        """Loads that went well."""
        return len(self.transfer_duration)

    def is_empty(self) -> bool:
        """Whether nothing has happened."""
        return self == NixlKVConnectorStats()

    def aggregate(self, other: KVConnectorWorkerMetadata) -> NixlKVConnectorStats:
        """This one and another, as one; a load of two ranks is two transfers, as upstream."""
        assert isinstance(other, NixlKVConnectorStats)
        return NixlKVConnectorStats(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def reduce(self) -> dict[str, float]:
        """The numbers of the log, under upstream's names; a MB is 2**20 bytes.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py:86 —
        `NixlKVConnectorStats.reduce`.
        """
        seconds, count = np.array(self.transfer_duration or [0.0]), max(self.num_successful_transfers, 1)
        megabytes, total = sum(self.bytes_transferred) / 2**20, float(seconds.sum())
        return {
            "Num successful transfers": self.num_successful_transfers,
            "Avg xfer time (ms)": round(float(seconds.mean()) * 1e3, 3),
            "P90 xfer time (ms)": round(float(np.percentile(seconds, 90)) * 1e3, 3),
            "Avg MB per transfer": round(megabytes / count, 3),
            "Throughput (MB/s)": round(megabytes / total, 3) if total else 0,
            "Avg number of descriptors": round(sum(self.num_descriptors) / count, 1),
        }

    def __str__(self) -> str:
        """As the log has it.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/metrics.py:102 — "xfer_metrics_str".
        """
        return ", ".join(f"{name}={value}" for name, value in self.reduce().items())


class NixlPromMetrics:
    """All transfers of an engine's life, as Prometheus has them, in upstream's buckets.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py:132 — `NixlPromMetrics`.
    """

    def __init__(self) -> None:
        self._seconds, self._bytes = HistogramData(_SECONDS), HistogramData([2 ** (10 + i) for i in range(1, 25, 2)])
        self._descriptors = HistogramData(_DESCRIPTORS)
        self._counts = dict.fromkeys(_COUNTERS, 0)

    def observe(self, stats: NixlKVConnectorStats) -> None:
        """Count what ranks have reported."""
        for data, values in (
            (self._seconds, stats.transfer_duration),
            (self._bytes, stats.bytes_transferred),
            (self._descriptors, stats.num_descriptors),
        ):
            for value in values:
                data.observe(value)
        for name in _COUNTERS:
            self._counts[name] += getattr(stats, name)

    def totals(self) -> dict[str, Any]:
        """See `KVConnectorBase_V1.get_kv_connector_stats`."""
        histograms = {
            "vllm:nixl_xfer_time_seconds": self._seconds,
            "vllm:nixl_bytes_transferred": self._bytes,
            "vllm:nixl_num_descriptors": self._descriptors,
        }
        found: dict[str, Any] = {}
        for name, data in histograms.items():
            buckets = data.cumulative()
            found[name] = {"count": data.count, "sum": data.sum, "buckets": buckets}
        return {**found, **{f"vllm:nixl_{name}": count for name, count in self._counts.items()}}
