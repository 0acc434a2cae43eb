"""The worker's half: the cache of one rank, what it offers to others, and what it reads from them.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py`. NIXL and what is said to it stand in
`server.py` and `remote.py`.
"""

from __future__ import annotations

import queue
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.config.utils import whole_number
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.metadata import (
    NixlAgentMetadata,
    NixlConnectorMetadata,
    NixlHandshakePayload,
    compute_nixl_compatibility_hash,
)
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.registered_cache import RegisteredCache
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.remote import Reader, RemoteEngine
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.server import Offers, Server
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.stats import NixlKVConnectorStats
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.tp_mapping import TransferTopology
from mini_vllm.kv_cache_interface import KVCacheSpecKind
from mini_vllm.logger import init_logger
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.utils.arrays import Array

logger = init_logger(__name__)

MAX_REMOTE_ENGINES = 64


class NixlConnectorWorker:
    """Args:
        engine_id: this engine's name among those that transfer.

    Attributes:
        xfer_handshake_metadata: what a rank of another engine has to know of this one; after `register_kv_caches`.
        xfer_stats: what has happened since the scheduler's half was told.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:86 — `NixlConnectorWorker`.
    """

    _reader: Reader

    def __init__(
        self, vllm_config: EngineConfig, engine_id: str, kv_cache_config: KVCacheConfig, settings: utils.NixlSettings
    ) -> None:
        self.vllm_config, self.engine_id, self.settings = vllm_config, engine_id, settings
        self._spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        self._lease_extension = settings.kv_lease_duration * 2 // 3
        self.xfer_handshake_metadata: NixlHandshakePayload | None = None
        self._rank, self._attn_backend_name, self._resolved_model = 0, "", None
        self._offers = Offers()
        self._server: Server | None = None
        self._remotes: dict[tuple[Any, ...], RemoteEngine] = {}
        self._reqs_to_process: set[str] = set()
        self._reqs_to_send: dict[str, float] = {}
        self._readers_left: dict[str, int] = {}  # of those that have heard from one
        self.xfer_stats = NixlKVConnectorStats()

    def bind_worker(self, rank: int, attn_backend_name: str, resolved_model: Any) -> None:
        """Which rank this is, and what it computes with."""
        self._rank, self._attn_backend_name, self._resolved_model = rank, attn_backend_name, resolved_model

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:
        """The arrays are there: answer reads of them from now on.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:788 —
        `NixlConnectorWorker.register_kv_caches`.
        """
        config, cache = self.vllm_config, RegisteredCache(kv_caches)
        is_mla = self._spec.kind == KVCacheSpecKind.MLA_ATTENTION
        hf_config = getattr(self._resolved_model, "hf_config", None)
        total = cache.num_heads if is_mla or hf_config is None else hf_config.num_key_value_heads
        folder = getattr(self._resolved_model, "model", None)
        model = folder if isinstance(folder, str) else type(folder).__name__
        shape = total, cache.head_dim, len(cache.layers)
        compat_hash = compute_nixl_compatibility_hash(config, model, self._attn_backend_name, shape)
        topology = TransferTopology(self._rank, config.tensor_parallel_size, total, is_mla)
        self._reader = Reader(cache, topology, self.settings, compat_hash)
        self._server = Server(cache, self._offers, self.settings)
        weakref.finalize(self, self._server.close)
        metadata = NixlAgentMetadata(
            self.engine_id, self._server.addresses, cache.num_blocks, [cache.block_len] * len(cache.layers), "NHD",
            cache.block_size, self._attn_backend_name,
        )  # fmt: skip
        self.xfer_handshake_metadata = NixlHandshakePayload(compat_hash, metadata.encode())

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        """Begin the loads of a step, take in what may be read, and send heartbeats.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:1933 —
        `NixlConnectorWorker.start_load_kv`.
        """
        for req_id, meta in metadata.reqs_to_recv.items():
            remote = meta.remote
            engine = self._remote(remote.engine_id, remote.host, remote.port, remote.tp_size)
            engine.submit((req_id, meta))
        for req_id in metadata.reqs_not_processed:
            self._offers.withdraw(req_id)
            self._reqs_to_process.discard(req_id)
        for req_id, (digest, block_ids) in metadata.reqs_in_batch.items():
            self._reqs_to_process.add(req_id)
            self._offers.add(req_id, digest, block_ids)
        for req_id, block_ids in metadata.new_block_ids.items():
            self._offers.extend(req_id, block_ids)
        for req_id, expires in metadata.reqs_to_send.items():
            if req_id in self._reqs_to_process:
                self._reqs_to_send[req_id] = expires
        for engine_id, info in metadata.heartbeat_by_engine.items():
            self._remote(engine_id, info.host, info.port, info.tp_size).submit(info)

    def _remote(self, *address: Any) -> RemoteEngine:
        if address not in self._remotes:
            if len(self._remotes) >= MAX_REMOTE_ENGINES:
                self._remotes = {key: each for key, each in self._remotes.items() if not each.is_idle}
            self._remotes[address] = RemoteEngine(self._reader, *address)
        return self._remotes[address]

    def get_finished(self) -> tuple[set[str], set[str]]:
        """(sent, received): whose blocks nobody reads any more, and whose load is over.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:1694 —
        `NixlConnectorWorker.get_finished`.
        """
        received = set(_drained(self._reader.received))
        self._take_notifications()
        sent, now = {req_id for req_id in self._reqs_to_send if self._readers_left.get(req_id, 1) <= 0}, utils.now()
        for req_id in [req_id for req_id, expires in self._reqs_to_send.items() if now >= expires]:
            if req_id not in sent:
                logger.warning("Releasing expired KV blocks for request %s: its lease has run out.", req_id)
                self.xfer_stats.num_kv_expired_reqs += 1
                sent.add(req_id)
        for req_id in sent:
            self._offers.withdraw(req_id)
            self._reqs_to_process.discard(req_id)
            self._readers_left.pop(req_id, None)
            del self._reqs_to_send[req_id]
        return sent, received

    def _take_notifications(self) -> None:
        """Count who has read, and renew leases.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:1792 —
        `NixlConnectorWorker._get_new_notifs`. A request is reported as sent there even where it is not known yet to
        have ended; here it waits for that, whoever says what.
        """
        for message in self._offers.take_notifications():
            if message.startswith("HB:"):
                self._handle_heartbeat(message[3:])
                continue
            req_id, _, tp_size = message.rpartition(":")
            try:
                count = self._reader.topology.consumers_per_producer(whole_number("tp_size", int(tp_size), 1))
            except ValueError as error:
                logger.warning("a message of a reader cannot be: %s: %s", shown(message), error)
                continue
            if req_id not in self._reqs_to_process:
                logger.error(
                    "Potentially invalid KV blocks for unrecognized request %s were retrieved by a decode worker. "
                    "They may have expired.", req_id,
                )  # fmt: skip
                continue
            self._readers_left[req_id] = self._readers_left.get(req_id, count) - 1

    def _handle_heartbeat(self, payload: str) -> None:
        """Renew the leases of the requests that a heartbeat names.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:1847 —
        `NixlConnectorWorker._handle_heartbeat`.
        """
        new_expiry = utils.now() + self._lease_extension
        for req_id in payload.split(","):
            if req_id in self._reqs_to_send:
                self._reqs_to_send[req_id] = max(self._reqs_to_send[req_id], new_expiry)

    def build_connector_worker_meta(self) -> NixlKVConnectorStats | None:
        """What has happened since the last call; None: nothing."""
        for each in _drained(self._reader.transfers):
            self.xfer_stats = self.xfer_stats.aggregate(each)
        found, self.xfer_stats = self.xfer_stats, NixlKVConnectorStats()
        return None if found.is_empty() else found

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that were to be filled and were not, since the last call."""
        return set().union(*_drained(self._reader.invalid))

    def shutdown(self) -> None:
        """End the threads and close the sockets; a second call does nothing."""
        if self._server is not None:
            self._server.close()
        for remote in self._remotes.values():
            remote.close()


def _drained(found: queue.SimpleQueue[Any]) -> list[Any]:
    """What is in a queue now."""
    return [found.get_nowait() for _ in range(found.qsize())]
