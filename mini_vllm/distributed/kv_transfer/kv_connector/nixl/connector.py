"""Either half of the point-to-point connector, which hands everything on to `scheduler.py` or `worker.py`.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/connector.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.metadata import NixlConnectorMetadata
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.scheduler import NixlConnectorScheduler
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.utils import NixlSettings
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.worker import NixlConnectorWorker

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionMetadata
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.outputs import KVConnectorOutput
    from mini_vllm.request import Request
    from mini_vllm.utils.arrays import Array


class NixlConnector(KVConnectorBase_V1):
    """`kv_connector_extra_config` is described in `utils.py`. All layers are in one KV cache group.

    Raises:
        ValueError: a setting that cannot be, named.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/connector.py:57 — `NixlConnector`, which is a
    `SupportsHMA`.
    """

    supports_tensor_parallel = True

    def __init__(self, vllm_config: EngineConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        engine_id = self._kv_transfer_config.engine_id
        assert engine_id is not None
        settings = NixlSettings.of(self._kv_transfer_config)
        self.connector_scheduler: NixlConnectorScheduler | None = None
        self.connector_worker: NixlConnectorWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = NixlConnectorScheduler(vllm_config, engine_id, settings)
        else:
            self.connector_worker = NixlConnectorWorker(vllm_config, engine_id, kv_cache_config, settings)

    # The scheduler's half

    @property
    def _scheduler(self) -> NixlConnectorScheduler:
        assert self.connector_scheduler is not None
        return self.connector_scheduler

    def on_new_request(self, request: Request) -> None:
        """See `NixlConnectorScheduler.on_new_request`."""
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See `NixlConnectorScheduler.get_num_new_matched_tokens`."""
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """See `NixlConnectorScheduler.update_state_after_alloc`."""
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """See `NixlConnectorScheduler.build_connector_meta`."""
        return self._scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """See `NixlConnectorScheduler.update_connector_output`."""
        self._scheduler.update_connector_output(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """See `NixlConnectorScheduler.request_finished`."""
        return self._scheduler.request_finished(request, [block_ids])

    def get_kv_connector_stats(self) -> dict[str, Any] | None:
        """See `NixlPromMetrics.totals`."""
        return self._scheduler.prom_metrics.totals()

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, KVConnectorHandshakeMetadata]) -> None:
        """See `NixlConnectorScheduler.set_xfer_handshake_metadata`."""
        self._scheduler.set_xfer_handshake_metadata(metadata)

    # The worker's half

    @property
    def _worker(self) -> NixlConnectorWorker:
        assert self.connector_worker is not None
        return self.connector_worker

    def bind_worker(self, rank: int, attn_backend_name: str, resolved_model: Any) -> None:
        """See `NixlConnectorWorker.bind_worker`."""
        self._worker.bind_worker(rank, attn_backend_name, resolved_model)

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:
        """See `NixlConnectorWorker.register_kv_caches`."""
        self._worker.register_kv_caches(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What a rank of another engine has to know of this one."""
        return self._worker.xfer_handshake_metadata

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """See `NixlConnectorWorker.start_load_kv`."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, NixlConnectorMetadata)
        self._worker.start_load_kv(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads end between steps, as upstream."""

    def save_kv_layer(self, layer_name: str, kv_layer: Array, attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Nothing: blocks are read where they are, as upstream."""

    def wait_for_save(self) -> None:
        """Nothing."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """See `NixlConnectorWorker.get_finished`."""
        return self._worker.get_finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """See `NixlConnectorWorker.get_block_ids_with_load_errors`."""
        return self._worker.get_block_ids_with_load_errors()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """See `NixlConnectorWorker.build_connector_worker_meta`."""
        return self._worker.build_connector_worker_meta()

    def shutdown(self) -> None:
        """End the threads and close the sockets of this half; a second call does nothing."""
        for half in (self.connector_worker, self.connector_scheduler):
            if half is not None:
                half.shutdown()
