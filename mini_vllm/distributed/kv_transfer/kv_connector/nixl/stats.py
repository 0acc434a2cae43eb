"""How many transfers there were, how large and how long. Upstream twin:
`vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorWorkerMetadata


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
