"""A P as one rank of D sees it: a handshake, then reads and messages, one after the other in a thread.

Each P has a thread of its own, which ends when there is nothing to do: a P that hangs holds up nobody but its own
readers, and those for as long as the time limits say. Whatever goes wrong becomes a failed load of one request.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py`, with NIXL's agents.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.metadata import (
    GET_META_MSG,
    HeartbeatInfo,
    NixlAgentMetadata,
    ReqMeta,
)
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.registered_cache import RegisteredCache, get_mapped_blocks
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.stats import NixlKVConnectorStats
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.tp_mapping import (
    ReadSpec,
    TransferTopology,
    compute_tp_mapping,
)
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.transports import TRANSPORTS, Freight, Transport
from mini_vllm.logger import init_logger
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import shown

logger = init_logger(__name__)

REQUESTS_PER_HEARTBEAT = 1000  # so that a message stays below its limit


@dataclass
class Reader:
    """What all readers of a rank share.

    Attributes:
        compat_hash: of this engine. received: requests whose load is over, well or not. invalid: blocks that were not
            filled; they are put there before the request is. transfers: what each load has come to.
    """

    cache: RegisteredCache
    topology: TransferTopology
    settings: utils.NixlSettings
    compat_hash: str
    received: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    invalid: queue.SimpleQueue[set[int]] = field(default_factory=queue.SimpleQueue)
    transfers: queue.SimpleQueue[NixlKVConnectorStats] = field(default_factory=queue.SimpleQueue)


Job = tuple[str, ReqMeta] | HeartbeatInfo
"""A load, with the request's name here; or requests whose leases are to be renewed."""


class RemoteEngine:
    """Args:
        reader: of this rank.
        engine_id, host, port, tp_size: what the other engine is called, where it answers, how many ranks it has.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:473 —
    `NixlConnectorWorker._nixl_handshake`, `:2106` — `NixlConnectorWorker._read_blocks`.
    """

    def __init__(self, reader: Reader, engine_id: str, host: str, port: int, tp_size: int) -> None:
        self.reader, self.engine_id, self.host, self.port, self.tp_size = reader, engine_id, host, port, tp_size
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._agents: dict[int, NixlAgentMetadata] = {}
        self._has_answered = False
        self._transport: Transport | None = None
        self._transport_name = ""
        self._specs: list[ReadSpec] = []

    def submit(self, job: Job) -> None:
        """Have a job done, after those before it; a heartbeat before those that wait, and only the latest."""
        with self._lock:
            if isinstance(job, HeartbeatInfo):
                self._jobs = deque(each for each in self._jobs if not isinstance(each, HeartbeatInfo))
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, daemon=True, name=f"nixl_{self.engine_id}")
                self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Nothing is done and nothing waits."""
        return self._thread is None

    def close(self) -> None:
        """Forget what waits, and wait until what is done now has ended, as long as the time limits let it."""
        with self._lock:
            self._closed, thread = True, self._thread
            self._jobs.clear()
        if thread is not None:
            thread.join(utils.HANDSHAKE_TIMEOUT_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                self._do(job)
            except Exception as error:  # whatever it is, it is this P's doing, or that of whoever named it
                for each in (job, *self._jobs_without_hope()):
                    self._fail(each, error)

    def _jobs_without_hope(self) -> list[Job]:
        """Those that wait and fail with the present one: all, where its handshake failed."""
        with self._lock:
            if self._has_answered:
                return []
            jobs, self._jobs = list(self._jobs), deque()
            return jobs

    def _fail(self, job: Job, error: Exception) -> None:
        if isinstance(job, HeartbeatInfo):
            logger.debug("Failed to send heartbeat to engine %s: %s", self.engine_id, error)
            return
        req_id, meta = job
        message = f"request {req_id!r} from engine {self.engine_id!r} at {self.host}:{self.port}: {error}"
        logger.error("NIXL transfer failure: %s", message)
        self.reader.transfers.put(NixlKVConnectorStats(num_failed_transfers=1))
        if meta.local_block_ids:
            self.reader.invalid.put(set(meta.local_block_ids[0]))
            self.reader.received.put(req_id)

    def _do(self, job: Job) -> None:
        self._has_answered = bool(self._agents)
        if not self._has_answered:
            self._handshake()
            self._has_answered = True
        try:
            if isinstance(job, HeartbeatInfo):
                req_ids = sorted(job.req_ids)
                for first in range(0, len(req_ids), REQUESTS_PER_HEARTBEAT):
                    self._notify(f"HB:{','.join(req_ids[first : first + REQUESTS_PER_HEARTBEAT])}")
            else:
                self._load(*job)
        except OSError:
            self._agents = {}  # perhaps another engine answers there by now
            raise

    def _handshake(self) -> None:
        """Ask the ranks there that this one speaks to. Raises OSError, RuntimeError, ValueError."""
        topology, agents = self.reader.topology, {}
        targets = topology.handshake_target_ranks(self.tp_size)
        with socket.create_connection((self.host, self.port), utils.HANDSHAKE_TIMEOUT_S) as sock:
            for rank in targets:
                utils.send_message(sock, {"msg": GET_META_MSG, "tp_rank": rank})
                agents[rank] = self._check(utils.receive_message(sock, utils.HANDSHAKE_TIMEOUT_S))
        self._transport_name = next(
            (name for name in self.reader.settings.backends if all(name in a.agent_metadata for a in agents.values())),
            "",
        )
        if not self._transport_name:
            theirs = sorted(agents[targets[0]].agent_metadata)
            raise ValueError(f"backends must have one in common: {self.reader.settings.backends} here, {theirs} there")
        self._transport = TRANSPORTS[self._transport_name]
        self._specs = compute_tp_mapping(topology, self.tp_size)
        self._agents = agents

    def _check(self, answer: dict[str, object]) -> NixlAgentMetadata:
        """The metadata of a rank that fits.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:1414 —
        `NixlConnectorWorker._validate_remote_agent_handshake`.
        """
        remote_hash, text = answer.get("compatibility_hash"), answer.get("agent_metadata_bytes")
        if not isinstance(remote_hash, str) or not isinstance(text, str):
            raise RuntimeError(
                "Failed to decode NixlHandshakePayload. This likely indicates an incompatibility between connector "
                f"version. Error: its fields are {shown(answer)}"
            )
        reader = self.reader
        if reader.settings.enforce_handshake_compat and remote_hash != reader.compat_hash:
            raise RuntimeError(
                f"NIXL compatibility hash mismatch. Local: {reader.compat_hash}, Remote: {remote_hash}. Prefill and "
                "decode instances have incompatible configurations. This may be due to: different versions, models, "
                "dtypes, KV cache layouts, attention backends, etc. Both instances must use identical configurations. "
                "Disable this check using --kv-transfer-config "
                '\'{"kv_connector_extra_config": {"enforce_handshake_compat": false}}\''
            )
        logger.info("NIXL compatibility check passed (hash: %s)", remote_hash)
        metadata = NixlAgentMetadata.decode(text)
        if metadata.engine_id != self.engine_id:
            raise RuntimeError(
                f"Remote NIXL agent engine ID mismatch. Expected {self.engine_id}, received {metadata.engine_id}."
            )
        cache, topology = reader.cache, reader.topology
        heads = 1 if topology.is_mla else max(topology.total_num_kv_heads // self.tp_size, 1)
        expected = cache.block_len // cache.block_size // cache.num_heads * heads * metadata.block_size
        if metadata.block_lens != [expected] * len(cache.layers):
            raise RuntimeError(
                f"a block of {metadata.block_size} tokens must have {expected} bytes in each of {len(cache.layers)} "
                f"layers, got {shown(metadata.block_lens)}: the engines' caches have other shapes or types"
            )
        return metadata

    def _load(self, req_id: str, meta: ReqMeta) -> None:
        """Read a request's blocks from every rank that has some of its heads, and tell all that wait for it."""
        done, start = NixlKVConnectorStats(), time.perf_counter()
        if meta.local_block_ids:
            if len(meta.remote.block_ids) != 1:
                raise ValueError(f"remote_block_ids must be of one KV cache group, got {len(meta.remote.block_ids)}")
            slots = self.reader.cache.slot_mapping(meta.local_block_ids[0], meta.first_token, meta.num_tokens)
            freights = [self._read(spec, meta, slots) for spec in self._specs]
            done.record_transfer(
                time.perf_counter() - start,
                sum(freight.nbytes for freight in freights),
                sum(freight.num_layers * freight.shape[0] for freight in freights),
            )
            self.reader.received.put(req_id)
        try:
            self._notify(f"{meta.remote.request_id}:{self.reader.topology.tp_size}")
        except (OSError, ValueError) as error:  # what was read is good all the same
            logger.warning("P worker blocks will be freed after timeout (request %s): %s", req_id, error)
            done.num_failed_notifications += 1
        self.reader.transfers.put(done)

    def _read(self, spec: ReadSpec, meta: ReqMeta, slots: Array) -> Freight:
        """One read, and what came."""
        agent, cache = self._agents[spec.remote_rank], self.reader.cache
        remote_ids, size = meta.remote.block_ids[0], agent.block_size
        first, stop = get_mapped_blocks(remote_ids, size, meta.first_token, meta.num_tokens)
        freight = cache.freight(stop - first, spec.num_heads, size)
        skipped = meta.first_token - first * size

        def take(layer: int, blocks: Array) -> None:
            tokens = blocks.reshape(-1, *blocks.shape[2:])[skipped : skipped + len(slots)]
            if not np.isfinite(tokens).all():
                raise ValueError(f"a value of layer {layer} is not finite")
            cache.scatter(layer, slots, spec, tokens)

        def read(sock: socket.socket, transport: Transport) -> None:
            asked = {
                "op": "read", "request_id": meta.remote.request_id, "digest": meta.digest,
                "first_block": first, "block_ids": remote_ids[first:stop],
                "first_head": spec.remote_head, "num_heads": spec.num_heads,
            }  # fmt: skip
            utils.send_message(sock, asked)
            begun = _answer(sock, "ok")
            found = begun.get("layers"), begun.get("bytes")
            if found != (freight.num_layers, freight.layer_bytes):
                raise ValueError(f"P sends {found} (layers, bytes), not {freight.num_layers, freight.layer_bytes}")
            transport.receive(sock, freight, take)
            _answer(sock, "done")

        self._with_agent(spec.remote_rank, read)
        return freight

    def _notify(self, message: str) -> None:
        """Tell every rank there that this one speaks to."""

        def tell(sock: socket.socket, _: Transport) -> None:
            utils.send_message(sock, {"op": "notify", "message": message})
            _answer(sock, "done")

        for rank in self._agents:
            self._with_agent(rank, tell)

    def _with_agent(self, rank: int, use: Callable[[socket.socket, Transport], None]) -> None:
        assert self._transport is not None
        with self._transport.connect(self._agents[rank].agent_metadata[self._transport_name]) as sock:
            use(sock, self._transport)


def _answer(sock: socket.socket, expected: str) -> dict[str, object]:
    """P's next message. Raises ValueError where it refuses, with its words."""
    answer = utils.receive_message(sock, utils.TRANSFER_TIMEOUT_S)
    if answer.get("status") != expected:
        raise ValueError(str(answer.get("error", f"P answers {shown(answer)}")))
    return answer
