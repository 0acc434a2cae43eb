"""What the two halves of the offloading connector tell each other.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/common.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from mini_vllm.kv_offload.worker.worker import TransferSpec

ReqId = str


@dataclass
class TransferJob:
    """A copy, and for which request it is made.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/common.py:15 — `TransferJob`.
    """

    req_id: ReqId
    transfer_spec: TransferSpec


@dataclass
class OffloadingHandshakeMetadata(KVConnectorHandshakeMetadata):
    """Which weights a rank has: `model_fingerprint`. Upstream's scheduler knows the model's name."""

    model: str


@dataclass
class OffloadingConnectorMetadata(KVConnectorMetadata):
    """A step's copies by their numbers, and which ones have to be over before anything is computed.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/common.py:28 —
    `OffloadingConnectorMetadata`.
    """

    load_jobs: dict[int, TransferJob] = field(default_factory=dict)
    store_jobs: dict[int, TransferJob] = field(default_factory=dict)
    jobs_to_flush: set[int] = field(default_factory=set)


@dataclass
class OffloadingWorkerMetadata(KVConnectorWorkerMetadata):
    """Copies that are over: number -> how many ranks say so.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/common.py:36 —
    `OffloadingWorkerMetadata`.
    """

    completed_jobs: dict[int, int] = field(default_factory=dict)

    def mark_completed(self, job_id: int) -> None:
        """This rank says so."""
        self.completed_jobs[job_id] = 1

    def aggregate(self, other: KVConnectorWorkerMetadata) -> OffloadingWorkerMetadata:
        """The sums of both."""
        assert isinstance(other, OffloadingWorkerMetadata)
        merged = dict(self.completed_jobs)
        for job_id, count in other.completed_jobs.items():
            merged[job_id] = merged.get(job_id, 0) + count
        return OffloadingWorkerMetadata(merged)
