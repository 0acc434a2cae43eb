"""A connector whose other place is the host's memory, or what lies below it: blocks that the pool loses come back.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingHandshakeMetadata,
)
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.scheduler import OffloadingConnectorScheduler
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.worker import OffloadingConnectorWorker
from mini_vllm.kv_offload.factory import OffloadingSpecFactory

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionMetadata
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.distributed.kv_events import KVCacheEvent
    from mini_vllm.distributed.kv_transfer.kv_connector.base import (
        KVConnectorHandshakeMetadata,
        KVConnectorWorkerMetadata,
    )
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.outputs import KVConnectorOutput
    from mini_vllm.request import Request
    from mini_vllm.utils.arrays import Array


class OffloadingConnector(KVConnectorBase_V1, SupportsHMA):
    """Each half is an object of its own: `OffloadingConnectorScheduler`, `OffloadingConnectorWorker`.

    Raises:
        ValueError: as the spec that `kv_connector_extra_config` names (`OffloadingSpecFactory`).

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py:46 — `OffloadingConnector`.
    """

    supports_tensor_parallel = True

    def __init__(self, vllm_config: EngineConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        spec = OffloadingSpecFactory.create_spec(vllm_config, kv_cache_config)
        self._scheduler: OffloadingConnectorScheduler | None = None
        self._worker: OffloadingConnectorWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = OffloadingConnectorScheduler(spec)
        else:
            self._worker = OffloadingConnectorWorker(spec)

    @property
    def connector_scheduler(self) -> OffloadingConnectorScheduler:
        """The scheduler's half, where this is it."""
        assert self._scheduler is not None, "this is the worker's half"
        return self._scheduler

    @property
    def connector_worker(self) -> OffloadingConnectorWorker:
        """The worker's half, where this is it."""
        assert self._worker is not None, "this is the scheduler's half"
        return self._worker

    def shutdown(self) -> None:
        """Of whichever half this is."""
        (self._scheduler or self.connector_worker).shutdown()

    # The worker's half

    def bind_worker(self, rank: int, attn_backend_name: str, resolved_model: Any) -> None:
        """As `OffloadingConnectorWorker.bind_worker`."""
        self.connector_worker.bind_worker(rank, resolved_model)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """As `OffloadingConnectorWorker.get_handshake_metadata`."""
        return self.connector_worker.get_handshake_metadata()

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:
        """As `OffloadingConnectorWorker.register_kv_caches`."""
        self.connector_worker.register_kv_caches(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """As `OffloadingConnectorWorker.handle_preemptions`."""
        assert isinstance(kv_connector_metadata, OffloadingConnectorMetadata)
        self.connector_worker.handle_preemptions(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the loads of this step; all go on in the background."""
        self.connector_worker.start_kv_transfers(self._metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Whoever is computed has all its blocks."""

    def save_kv_layer(self, layer_name: str, kv_layer: Array, attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Whole blocks are stored, later."""

    def wait_for_save(self) -> None:
        """Nobody waits for a store before its blocks are given to another."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """As `OffloadingConnectorWorker.get_finished`; the stores of this step are noted here, because this is called
        in each step."""
        self.connector_worker.prepare_store_kv(self._metadata())
        return self.connector_worker.get_finished(finished_req_ids)

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """As `OffloadingConnectorWorker.build_connector_worker_meta`."""
        return self.connector_worker.build_connector_worker_meta()

    def _metadata(self) -> OffloadingConnectorMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, OffloadingConnectorMetadata)
        return metadata

    # The scheduler's half

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, KVConnectorHandshakeMetadata]) -> None:
        """The first rank says which weights all of them have."""
        said = metadata.get(0)
        if isinstance(said, OffloadingHandshakeMetadata):
            self.connector_scheduler.manager.bind_model(said.model)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """As `OffloadingConnectorScheduler.get_num_new_matched_tokens`."""
        return self.connector_scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """As `OffloadingConnectorScheduler.update_state_after_alloc`."""
        self.connector_scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> OffloadingConnectorMetadata:
        """As `OffloadingConnectorScheduler.build_connector_meta`."""
        return self.connector_scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """As `OffloadingConnectorScheduler.update_connector_output`."""
        self.connector_scheduler.update_connector_output(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As `OffloadingConnectorScheduler.request_finished`."""
        return self.connector_scheduler.request_finished(request)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `OffloadingConnectorScheduler.request_finished`."""
        return self.connector_scheduler.request_finished(request)

    def take_events(self) -> Iterable[KVCacheEvent]:
        """As `OffloadingConnectorScheduler.take_events`."""
        return self.connector_scheduler.take_events()

    def reset_cache(self) -> bool | None:
        """As `OffloadingConnectorScheduler.reset_cache`."""
        self.connector_scheduler.reset_cache()
        return True
