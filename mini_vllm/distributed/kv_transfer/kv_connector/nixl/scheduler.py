"""The scheduler's half: which requests are read from elsewhere, which are kept for others, and for how long.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py`. It writes into the request's
`kv_transfer_params` that its transfer has begun; here the half remembers that. Where these parameters are not complete
it warns and then waits forever; here the prompt is computed.
"""

from __future__ import annotations

import socket
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorHandshakeMetadata
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.listener import Listener
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.metadata import (
    GET_META_MSG,
    BlockIds,
    HeartbeatInfo,
    NixlConnectorMetadata,
    NixlHandshakePayload,
    RemoteMeta,
    ReqMeta,
    prompt_digest,
)
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.sources import Sources
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.transports import bound_tcp_socket
from mini_vllm.logger import init_logger
from mini_vllm.request import RequestStatus
from mini_vllm.utils.checks import naming

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.outputs import KVConnectorOutput
    from mini_vllm.request import Request

logger = init_logger(__name__)

LOG_INTERVAL_S = 10.0
"""Upstream: upstream/vllm/envs.py:48 — "VLLM_LOG_STATS_INTERVAL"."""


class NixlConnectorScheduler:
    """Args:
        engine_id: this engine's name among those that transfer.

    Attributes:
        side_channel_host, side_channel_port: where handshakes are answered, once `set_xfer_handshake_metadata` was
            called. stats: of the transfers that the log does not have yet. prom_metrics: of all.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py:51 — `NixlConnectorScheduler`.
    """

    def __init__(self, vllm_config: EngineConfig, engine_id: str, settings: utils.NixlSettings) -> None:
        self.engine_id, self.block_size = engine_id, vllm_config.block_size
        self.tp_size = vllm_config.tensor_parallel_size
        self.side_channel_host, self.side_channel_port = settings.side_channel_host, settings.side_channel_port
        self._kv_lease_duration = settings.kv_lease_duration
        self._heartbeat_interval = settings.kv_lease_duration // 6
        self._listener: Listener | None = None
        self._reqs_need_recv: dict[str, ReqMeta] = {}
        self._reqs_need_send: dict[str, float] = {}
        self._reqs_in_batch: dict[str, tuple[str, list[int]]] = {}
        self._prefilling: set[str] = set()  # requests that others will go on with, and that run
        self._reqs_not_processed: set[str] = set()
        self._to_load: dict[str, RemoteMeta] = {}  # requests whose one transfer has not begun
        self._sources = Sources()
        self._heartbeat_by_engine: dict[str, HeartbeatInfo] = {}
        self._heartbeat_req_engine: dict[str, tuple[str, str]] = {}
        self._last_heartbeat_time, self._last_log = 0.0, time.monotonic()
        self.stats, self.prom_metrics = NixlKVConnectorStats(), NixlPromMetrics()
        logger.info("Initializing NIXL Scheduler %s", engine_id)

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, KVConnectorHandshakeMetadata]) -> None:
        """Answer handshakes from now on.

        Args:
            metadata: what each rank has to say.

        Raises:
            ValueError: another type; or the side channel's address is taken.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py:246 —
        `NixlConnectorScheduler.set_xfer_handshake_metadata`.
        """
        answers = {}
        for rank, payload in metadata.items():
            if not isinstance(payload, NixlHandshakePayload):
                raise ValueError("NixlConnectorScheduler expects NixlHandshakePayload for handshake metadata.")
            answers[rank] = vars(payload)
        if self._listener is not None:
            return
        address = self.side_channel_host, self.side_channel_port
        with naming("VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT", f"{address[0]}:{address[1]}"):
            sock = bound_tcp_socket(*address)

        def answer(connection: socket.socket) -> None:
            while True:
                asked = utils.receive_message(connection, utils.HANDSHAKE_TIMEOUT_S, 1 << 10)
                if asked.get("msg") != GET_META_MSG or asked.get("tp_rank") not in answers:
                    raise ValueError(f"Connection listener got unexpected message {asked}")
                utils.send_message(connection, answers[asked["tp_rank"]])

        self._listener = Listener(sock, answer, "nixl_handshake_listener")
        self.side_channel_port = self._listener.address[1]
        weakref.finalize(self, self._listener.close)

    def shutdown(self) -> None:
        """Answer no more handshakes; a second call does nothing."""
        self._log()
        if self._listener is not None:
            self._listener.close()

    def on_new_request(self, request: Request) -> None:
        """Remember a request that is to be read from elsewhere; its lease is renewed from now on.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py:175 —
        `NixlConnectorScheduler.on_new_request`.
        """
        params = request.kv_transfer_params
        if not isinstance(params, dict) or not params.get("do_remote_prefill"):
            return
        remote = RemoteMeta.of(params)
        if remote is None:
            logger.warning("Got invalid KVTransferParams: %s. This request will not utilize KVTransfer", params)
            return
        self._to_load[request.request_id] = remote
        self._sources.add(request.request_id, remote)
        info = self._heartbeat_by_engine.get(remote.engine_id)
        if info is None:
            info = HeartbeatInfo(set(), remote.host, remote.port, remote.tp_size)
            self._heartbeat_by_engine[remote.engine_id] = info
        info.req_ids.add(remote.request_id)
        self._heartbeat_req_engine[request.request_id] = remote.engine_id, remote.request_id

    def _stop_heartbeat(self, req_id: str) -> None:
        key = self._heartbeat_req_engine.pop(req_id, None)
        if key is not None and (info := self._heartbeat_by_engine.get(key[0])):
            info.req_ids.discard(key[1])
            if not info.req_ids:
                del self._heartbeat_by_engine[key[0]]

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """All of the prompt that is not here, in the background, where it is to be read and was not yet; None while
        another request reads it.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py:356 —
        `NixlConnectorScheduler.get_num_new_matched_tokens`.
        """
        if request.request_id in self._to_load:
            may_read = self._sources.may_read(request.request_id)
            if not may_read:
                return (None if may_read is None else 0), False
            count = request.num_prompt_tokens - num_computed_tokens
            if count > 0:
                return count, True
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Note the one load of a request; of a prompt that is here as a whole, P is told that nobody comes. On P, note
        that the request may be read.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py:434 —
        `NixlConnectorScheduler.update_state_after_alloc`.
        """
        request_id, params = request.request_id, request.kv_transfer_params
        if isinstance(params, dict) and params.get("do_remote_decode"):
            self._reqs_in_batch[request_id] = prompt_digest(request), list(blocks.get_block_ids()[0])
            self._prefilling.add(request_id)
        remote = self._to_load.pop(request_id, None)
        if remote is None or not self._sources.may_read(request_id):
            return
        self._sources.begin(request_id)
        end, groups = request.num_prompt_tokens, []
        if num_external_tokens:
            first = (end - num_external_tokens) // self.block_size
            groups = [list(group[first:]) for group in blocks.get_block_ids()]
        self._reqs_need_recv[request_id] = ReqMeta(
            groups, remote, prompt_digest(request), end - num_external_tokens, end
        )

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> NixlConnectorMetadata:
        """What was noted since the last step; new blocks of requests that may be read; and heartbeats, if it is time.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py:538 —
        `NixlConnectorScheduler.build_connector_meta`.
        """
        meta = NixlConnectorMetadata(
            self._reqs_need_recv, self._reqs_need_send, self._reqs_in_batch, self._reqs_not_processed
        )
        cached = scheduler_output.scheduled_cached_reqs
        for req_id, groups in zip(cached.req_ids, cached.new_block_ids, strict=True) if self._prefilling else ():
            if groups and req_id in self._prefilling and req_id not in self._reqs_in_batch:
                meta.new_block_ids[req_id] = list(groups[0])
        if self._heartbeat_by_engine:
            now = utils.now()
            if now - self._last_heartbeat_time >= self._heartbeat_interval:
                self._last_heartbeat_time = now
                meta.heartbeat_by_engine = {
                    engine: HeartbeatInfo(set(info.req_ids), info.host, info.port, info.tp_size)
                    for engine, info in self._heartbeat_by_engine.items()
                }
        self._reqs_need_recv, self._reqs_need_send, self._reqs_in_batch = {}, {}, {}
        self._reqs_not_processed = set()
        if time.monotonic() - self._last_log > LOG_INTERVAL_S:
            self._log()
        return meta

    def _log(self) -> None:
        """Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/metrics.py:103 — "KV Transfer metrics"."""
        self._last_log = time.monotonic()
        if not self.stats.is_empty():
            logger.info("KV Transfer metrics: %s", self.stats)
            self.stats = NixlKVConnectorStats()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What has been read needs no lease; the log has the transfers of each ten seconds."""
        if isinstance(connector_output.kv_connector_worker_meta, NixlKVConnectorStats):
            self.stats = self.stats.aggregate(connector_output.kv_connector_worker_meta)
            self.prom_metrics.observe(connector_output.kv_connector_worker_meta)
        for req_id in connector_output.finished_recving or ():
            self._stop_heartbeat(req_id)
            self._sources.end(req_id)

    def request_finished(self, request: Request, block_ids: BlockIds) -> tuple[bool, dict[str, Any] | None]:
        """On P: keep the blocks of a prompt that is done, and say where they are. On D: tell P of a request that was
        ended before its load began.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py:580 —
        `NixlConnectorScheduler.request_finished`.
        """
        request_id, params = request.request_id, request.kv_transfer_params
        self._stop_heartbeat(request_id)
        self._prefilling.discard(request_id)
        remote, is_unread = self._to_load.pop(request_id, None), self._sources.leave(request_id)
        if remote is not None:
            if is_unread:
                self._reqs_need_recv[request_id] = ReqMeta([], remote)
            return False, None
        if not isinstance(params, dict) or not params.get("do_remote_decode"):
            return False, None
        if request.status not in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED):
            self._reqs_not_processed.add(request_id)
            self._reqs_in_batch.pop(request_id, None)
            return False, None
        delay_free_blocks, remote_num_tokens = any(block_ids), 0
        if delay_free_blocks:
            self._reqs_need_send[request_id] = utils.now() + self._kv_lease_duration
            remote_num_tokens = request.num_computed_tokens
        return delay_free_blocks, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": block_ids,
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.side_channel_host,
            "remote_port": self.side_channel_port,
            "tp_size": self.tp_size,
            "remote_num_tokens": remote_num_tokens,
        }
