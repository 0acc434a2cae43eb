"""Several connectors as one: the first that has tokens of a request loads them, all of them save.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from mini_vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionMetadata
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.block_pool import BlockPool
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.distributed.kv_events import KVCacheEvent
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.outputs import KVConnectorOutput
    from mini_vllm.request import Request
    from mini_vllm.utils.arrays import Array

Ended = tuple[bool, "dict[str, Any] | None"]


@dataclass
class MultiKVConnectorMetadata(KVConnectorMetadata):
    """Each connector's, in their order; and of which requests more than one connector keeps the blocks: id -> how many
    beyond the first.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:47 — `MultiKVConnectorMetadata`.
    """

    metadata: tuple[KVConnectorMetadata, ...]
    extra_async_saves: dict[str, int] = field(default_factory=dict)


@dataclass
class MultiKVConnectorWorkerMetadata(KVConnectorWorkerMetadata):
    """Each connector's, None where it has none.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:53 —
    `MultiKVConnectorWorkerMetadata`.
    """

    metadata: tuple[KVConnectorWorkerMetadata | None, ...]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> MultiKVConnectorWorkerMetadata:
        """Connector by connector."""
        assert isinstance(other, MultiKVConnectorWorkerMetadata)
        pairs = zip(self.metadata, other.metadata, strict=True)
        return MultiKVConnectorWorkerMetadata(
            tuple(mine.aggregate(its) if mine and its else mine or its for mine, its in pairs)
        )


@dataclass
class MultiKVConnectorHandshakeMetadata(KVConnectorHandshakeMetadata):
    """Each connector's, None where it has none."""

    metadata: tuple[KVConnectorHandshakeMetadata | None, ...]


class MultiConnector(KVConnectorBase_V1, SupportsHMA):
    """`kv_connector_extra_config={"connectors": [{"kv_connector": …, "kv_role": …, …}, …]}`, in the order in which they
    are asked. `kv_load_failure_policy` is that of the settings around them.

    Raises:
        ValueError: no such list, or an entry is not what `KVTransferConfig` takes; or one of the connectors knows only
            one KV cache group, and the model has several.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:129 — `MultiConnector`; metrics
    and memory layouts are left out.
    """

    supports_tensor_parallel = True  # where all of them do

    def __init__(self, vllm_config: EngineConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._connectors: list[KVConnectorBase_V1] = []
        for child in self.child_configs(self._kv_transfer_config):
            config = copy.copy(vllm_config)
            config.kv_transfer_config = child
            self._connectors.append(KVConnectorFactory.create_connector(config, role, kv_cache_config))
        self._requests_to_connector: dict[str, int] = {}
        self._extra_async_saves: dict[str, int] = {}

    @classmethod
    def child_configs(cls, kv_transfer_config: KVTransferConfig) -> list[KVTransferConfig]:
        """The settings of each connector; `engine_id` is that of the settings around them, unless they have one. Raises
        ValueError as the class."""
        entries = kv_transfer_config.get_from_extra_config("connectors", None)
        name = "kv_connector_extra_config['connectors']"
        if not isinstance(entries, list) or not entries:
            raise ValueError(f"{name} must be a list of at least one connector's settings, got {entries!r}")
        found = []
        for number, entry in enumerate(entries):
            child = KVTransferConfig.of(entry)
            if child is None:
                raise ValueError(f"{name}[{number}] must name a kv_connector, got {entry!r}")
            own = entry.get("engine_id") if isinstance(entry, dict) else child.engine_id
            found.append(replace(child, engine_id=own or kv_transfer_config.engine_id))
        return found

    def _tell_all(self, method: str, *args: Any, **kwargs: Any) -> None:
        for connector in self._connectors:
            getattr(connector, method)(*args, **kwargs)

    def shutdown(self) -> None:
        """Of all of them, also where one of them fails."""
        with ExitStack() as stack:
            for connector in self._connectors:
                stack.callback(connector.shutdown)

    # The worker's half

    def bind_worker(self, rank: int, attn_backend_name: str, resolved_model: Any) -> None:
        """To all of them."""
        self._tell_all("bind_worker", rank, attn_backend_name, resolved_model)

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:
        """To all of them."""
        self._tell_all("register_kv_caches", kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """To each its own."""
        assert isinstance(connector_metadata, MultiKVConnectorMetadata)
        self._extra_async_saves.update(connector_metadata.extra_async_saves)
        for connector, its in zip(self._connectors, connector_metadata.metadata, strict=True):
            connector.bind_connector_metadata(its)
        super().bind_connector_metadata(connector_metadata)

    def clear_connector_metadata(self) -> None:
        """Of all of them."""
        self._tell_all("clear_connector_metadata")
        super().clear_connector_metadata()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """To each its own."""
        assert isinstance(kv_connector_metadata, MultiKVConnectorMetadata)
        for connector, its in zip(self._connectors, kv_connector_metadata.metadata, strict=True):
            connector.handle_preemptions(its)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Of all of them."""
        self._tell_all("start_load_kv", forward_context, **kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """For all of them."""
        self._tell_all("wait_for_layer_load", layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Array, attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Into all of them."""
        self._tell_all("save_kv_layer", layer_name, kv_layer, attn_metadata, **kwargs)

    def wait_for_save(self) -> None:
        """For all of them."""
        self._tell_all("wait_for_save")

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Who is received, from whichever connector; and who is sent by all connectors that keep its blocks."""
        sent, received = set[str](), set[str]()
        for connector in self._connectors:
            its_sent, its_received = connector.get_finished(finished_req_ids)
            received |= its_received or set()
            for req_id in its_sent or ():
                extra = self._extra_async_saves.pop(req_id, 0)
                if not extra:
                    sent.add(req_id)
                elif extra > 1:
                    self._extra_async_saves[req_id] = extra - 1
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Of all of them."""
        return set().union(*(connector.get_block_ids_with_load_errors() for connector in self._connectors))

    def build_connector_worker_meta(self) -> MultiKVConnectorWorkerMetadata | None:
        """Each connector's; None where none has any."""
        found = tuple(connector.build_connector_worker_meta() for connector in self._connectors)
        return MultiKVConnectorWorkerMetadata(found) if any(found) else None

    def get_handshake_metadata(self) -> MultiKVConnectorHandshakeMetadata | None:
        """Each connector's; None where none has any. Upstream hands that of the first one on, to all."""
        found = tuple(connector.get_handshake_metadata() for connector in self._connectors)
        return MultiKVConnectorHandshakeMetadata(found) if any(found) else None

    # The scheduler's half

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """To all of them."""
        self._tell_all("bind_gpu_block_pool", gpu_block_pool)

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, KVConnectorHandshakeMetadata]) -> None:
        """To each its own."""
        said = {
            rank: each.metadata
            for rank, each in metadata.items()
            if isinstance(each, MultiKVConnectorHandshakeMetadata)
        }
        for number, connector in enumerate(self._connectors):
            its = ((rank, each[number]) for rank, each in said.items())
            connector.set_xfer_handshake_metadata({rank: each for rank, each in its if each is not None})

    def on_new_request(self, request: Request) -> None:
        """To all of them."""
        self._tell_all("on_new_request", request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """What the first connector says that has any; None as soon as one of them does not know yet.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:363 —
        `MultiConnector.get_num_new_matched_tokens`; it remembers who was chosen for an earlier admission.
        """
        self._requests_to_connector.pop(request.request_id, None)
        chosen: tuple[int | None, bool] = (0, False)
        for number, connector in enumerate(self._connectors):
            count, in_background = connector.get_num_new_matched_tokens(request, num_computed_tokens)
            if count is None:
                return None, False
            if not chosen[0] and count > 0:
                self._requests_to_connector[request.request_id] = number
                chosen = count, in_background
        return chosen

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The chosen connector is told; the others hear of a request without blocks."""
        chosen = self._requests_to_connector.get(request.request_id)
        nothing = KVCacheBlocks(tuple(() for _ in blocks.blocks))
        for number, connector in enumerate(self._connectors):
            its = (blocks, num_external_tokens) if number == chosen else (nothing, 0)
            connector.update_state_after_alloc(request, *its)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> MultiKVConnectorMetadata:
        """Each connector's."""
        extra, self._extra_async_saves = self._extra_async_saves, {}
        each = tuple(connector.build_connector_meta(scheduler_output) for connector in self._connectors)
        return MultiKVConnectorMetadata(each, extra)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """To each what its worker's halves said."""
        said = connector_output.kv_connector_worker_meta
        assert said is None or isinstance(said, MultiKVConnectorWorkerMetadata)
        for number, connector in enumerate(self._connectors):
            its = None if said is None else said.metadata[number]
            connector.update_connector_output(replace(connector_output, kv_connector_worker_meta=its))

    def request_finished(self, request: Request, block_ids: list[int]) -> Ended:
        """As `request_finished_all_groups`, of one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> Ended:
        """Whether any connector keeps the blocks, and what the one says that says anything.

        Raises:
            RuntimeError: two have something to say to whoever goes on with the request.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:456 —
        `MultiConnector._aggregate_request_finished`.
        """
        answers = [
            connector.request_finished_all_groups(request, block_ids)
            if isinstance(connector, SupportsHMA)
            else connector.request_finished(request, block_ids[0])
            for connector in self._connectors
        ]
        num_kept, said = sum(is_kept for is_kept, _ in answers), [said for _, said in answers if said is not None]
        if len(said) > 1:
            raise RuntimeError("Only one connector can produce KV transfer params")
        if num_kept > 1:
            self._extra_async_saves[request.request_id] = num_kept - 1
        self._requests_to_connector.pop(request.request_id, None)
        return num_kept > 0, said[0] if said else None

    def take_events(self) -> Iterable[KVCacheEvent]:
        """Of all of them."""
        return list(chain.from_iterable(connector.take_events() for connector in self._connectors))

    def reset_cache(self) -> bool:
        """Of all of them; False where one could not."""
        return all([connector.reset_cache() is not False for connector in self._connectors])
