"""The worker's half: copies begin and end around the steps.

A store waits until the next step begins: then the step that computes its blocks is over, and its tokens are out.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/worker.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingHandshakeMetadata,
    OffloadingWorkerMetadata,
    ReqId,
)
from mini_vllm.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    OffloadingSpec,
)
from mini_vllm.kv_offload.file_mapper import model_fingerprint
from mini_vllm.kv_offload.worker.worker import OffloadingWorker, TransferSpec
from mini_vllm.utils.arrays import Array


class OffloadingConnectorWorker:
    """Args:
        spec: makes the handlers.

    Attributes:
        num_bytes, seconds: of all copies so far, by ("GPU", "CPU") and ("CPU", "GPU").

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/worker.py:42 —
    `OffloadingConnectorWorker`; its statistics go to Prometheus.
    """

    def __init__(self, spec: OffloadingSpec) -> None:
        self.spec, self.worker = spec, OffloadingWorker()
        self.num_bytes: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[tuple[str, str], float] = {}
        self._handshake: OffloadingHandshakeMetadata | None = None
        self._load_jobs: dict[int, ReqId] = {}
        self._unsubmitted_store_jobs: list[tuple[int, TransferSpec]] = []
        self._connector_worker_meta = OffloadingWorkerMetadata()

    def bind_worker(self, rank: int, resolved_model: Any) -> None:
        """Whose half this is, and which weights it has.

        Raises:
            ValueError: blocks that outlive the engine need a checkpoint's folder, and this is a finished model.
        """
        self.spec.bind_worker(rank)
        if rank == 0 and self.spec.names_model:
            self._handshake = OffloadingHandshakeMetadata(model_fingerprint(resolved_model))

    def get_handshake_metadata(self) -> OffloadingHandshakeMetadata | None:
        """Which weights these are, where the scheduler's half has to know."""
        return self._handshake

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:
        """Make the handlers for these arrays, of which layers of several groups may share one.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/worker.py:59 —
        `OffloadingConnectorWorker.register_kv_caches`.
        """
        config = self.spec.kv_cache_config
        tensors, place = list[CanonicalKVCacheTensor](), dict[str, int]()
        for memory in config.kv_cache_tensors:
            array = kv_caches[memory.shared_by[0]]
            pages = array.view(np.uint8).reshape(config.num_blocks, -1)
            assert np.shares_memory(pages, array), "the pool's memory must be one piece"
            place.update(dict.fromkeys(memory.shared_by, len(tensors)))
            tensors.append(CanonicalKVCacheTensor(pages, pages.shape[1]))
        refs = [
            [CanonicalKVCacheRef(place[name], tensors[place[name]].page_size_bytes) for name in group.layer_names]
            for group in config.kv_cache_groups
        ]
        for src_cls, dst_cls, handler in self.spec.get_handlers(CanonicalKVCaches(tensors, refs)):
            self.worker.register_handler(src_cls, dst_cls, handler)

    def _submit_stores(self) -> None:
        for job_id, transfer_spec in self._unsubmitted_store_jobs:
            self._begin(job_id, transfer_spec)
        self._unsubmitted_store_jobs.clear()

    def _begin(self, job_id: int, transfer_spec: TransferSpec) -> None:
        if not self.worker.transfer_async(job_id, transfer_spec):
            raise RuntimeError(f"copy {job_id} of offloaded blocks cannot begin: {transfer_spec}")

    def handle_preemptions(self, metadata: OffloadingConnectorMetadata) -> None:
        """Wait for the copies whose blocks this step may write."""
        self._submit_stores()
        if metadata.jobs_to_flush:
            self.worker.wait(metadata.jobs_to_flush)

    def start_kv_transfers(self, metadata: OffloadingConnectorMetadata) -> None:
        """Begin the loads of this step."""
        self._submit_stores()
        for job_id, job in metadata.load_jobs.items():
            self._load_jobs[job_id] = job.req_id
            self._begin(job_id, job.transfer_spec)

    def prepare_store_kv(self, metadata: OffloadingConnectorMetadata) -> None:
        """Remember the stores of this step for the next one."""
        self._unsubmitted_store_jobs += [(job_id, job.transfer_spec) for job_id, job in metadata.store_jobs.items()]

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Nobody is ever reported as sent: the scheduler's half follows the stores by their numbers. Requests whose
        load has ended are reported as received."""
        received = set()
        for result in self.worker.get_finished():
            assert result.success and result.transfer_type is not None
            self.num_bytes[result.transfer_type] += result.transfer_size or 0
            seconds = self.seconds.get(result.transfer_type, 0.0)
            self.seconds[result.transfer_type] = seconds + (result.transfer_time or 0.0)
            self._connector_worker_meta.mark_completed(result.job_id)
            req_id = self._load_jobs.pop(result.job_id, None)
            if req_id is not None:
                received.add(req_id)
        return set(), received

    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        """Which copies have ended since the last call; None: none."""
        meta, self._connector_worker_meta = self._connector_worker_meta, OffloadingWorkerMetadata()
        return meta if meta.completed_jobs else None

    def shutdown(self) -> None:
        """Let everything go, after the copies that are under way."""
        self._unsubmitted_store_jobs.clear()
        self._load_jobs.clear()
        self.worker.shutdown()
