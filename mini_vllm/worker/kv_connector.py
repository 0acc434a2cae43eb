"""The worker's half of a KV connector, around the forward pass: loads begin before it, saves end after it.

The worker has each step run between `pre_forward` and `post_forward`. The layers get an attention that waits for a
layer's load before the layer is computed, and begins to save it afterwards.

Upstream twins: `vllm/v1/worker/gpu/kv_connector.py` and `vllm/v1/worker/kv_connector_model_runner_mixin.py`; there the
attention layers themselves look for a connector that is global.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mini_vllm.outputs import KVConnectorOutput

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionMetadata, AttentionStep
    from mini_vllm.attention.kv_cache import KVCache
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.distributed.kv_transfer.kv_connector.base import KVConnectorBase_V1, KVConnectorHandshakeMetadata
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.outputs import ModelRunnerOutput
    from mini_vllm.utils.arrays import Array
    from mini_vllm.worker.worker import Worker


def make_kv_connector(worker: Worker, kv_cache_config: KVCacheConfig) -> ActiveKVConnector | None:
    """The worker's half of the connector that the engine arguments name; None where they name none.

    Raises:
        ValueError: as `KVConnectorFactory.create_connector`; or the model is for pooling.

    Upstream: upstream/vllm/v1/worker/gpu_worker.py:555 — calls `ensure_kv_transfer_initialized`.
    """
    config = worker.config
    if config.kv_transfer_config is None:
        return None
    from mini_vllm.distributed.kv_transfer.kv_connector import KVConnectorFactory, KVConnectorRole

    if config.runner_type != "generate":
        raise ValueError(f"runner must be 'generate' with a KV connector, got {config.runner_type!r}")
    half = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache_config)
    return ActiveKVConnector(half, worker.rank, worker.resolved_model)


def get_handshake_metadata(worker: Worker) -> tuple[int, KVConnectorHandshakeMetadata | None]:
    """A rank, and what its half has to say to other engines.

    Upstream: upstream/vllm/v1/worker/gpu_worker.py:512 — `Worker.get_kv_connector_handshake_metadata`.
    """
    active = worker.model_runner.kv_connector
    return worker.rank, None if active is None else active.kv_connector.get_handshake_metadata()


class ActiveKVConnector:
    """Args:
        kv_connector: the worker's half.
        rank, resolved_model: of the worker.

    Attributes:
        kv_caches: layer name -> its array, once the runner has made them.

    Upstream: upstream/vllm/v1/worker/gpu/kv_connector.py:48 — `ActiveKVConnector`.
    """

    def __init__(self, kv_connector: KVConnectorBase_V1, rank: int = 0, resolved_model: Any = None) -> None:
        self.kv_connector, self.rank, self.resolved_model = kv_connector, rank, resolved_model
        self.kv_caches: dict[str, Array] = {}
        self._output: KVConnectorOutput | None = None

    def around(self, attention: Any, kv_cache: KVCache, num_layers: int) -> ConnectedAttention:
        """Tell the connector where keys and values are; the attention with the connector around it."""
        from mini_vllm.core.kv_cache_groups import layer_name

        places = getattr(attention, "place", {})  # of several groups: (group, memory) of each layer
        memories = [places.get(layer, (0, layer))[1] for layer in range(num_layers)]
        self.kv_caches = {layer_name(layer): kv_cache.data[memory] for layer, memory in enumerate(memories)}
        self.kv_connector.bind_worker(self.rank, getattr(attention, "name", ""), self.resolved_model)
        self.kv_connector.register_kv_caches(self.kv_caches)
        return ConnectedAttention(attention, self)

    def execute_model(self, run: Callable[[SchedulerOutput], None], scheduler_output: SchedulerOutput) -> None:
        """`run(scheduler_output)` between the step's loads and saves; the latter also where it fails."""
        computes = scheduler_output.total_num_scheduled_tokens > 0
        self.pre_forward(scheduler_output, computes)
        try:
            run(scheduler_output)
        finally:
            self.post_forward(scheduler_output.finished_req_ids, wait_for_save=computes)
        if not computes:  # a transfer in the background gets the processor for a moment, as upstream's core has it
            time.sleep(0.001)

    def pre_forward(self, scheduler_output: SchedulerOutput, computes: bool = True) -> None:
        """Begin the loads of a step. computes: whether anything is computed in it.

        Upstream: upstream/vllm/v1/worker/gpu/kv_connector.py:62 — `ActiveKVConnector.pre_forward`.
        """
        transfers = scheduler_output.kv_connector_metadata
        assert transfers is not None, "a plan without kv_connector_metadata: the scheduler has no connector"
        self.kv_connector.handle_preemptions(transfers)
        self.kv_connector.bind_connector_metadata(transfers)
        self.kv_connector.start_load_kv(self.kv_caches if computes else {})

    def post_forward(self, finished_req_ids: set[str], wait_for_save: bool = True) -> None:
        """The step is computed: wait for its saves, and note what has ended and what has failed. What an earlier step
        noted, and nobody has taken, is part of it.

        Upstream: upstream/vllm/v1/worker/gpu/kv_connector.py:78 — `ActiveKVConnector.post_forward`.
        """
        connector, before = self.kv_connector, self._output or KVConnectorOutput()
        if wait_for_save:
            connector.wait_for_save()
        sent, received = connector.get_finished(finished_req_ids)
        noted, meta = before.kv_connector_worker_meta, connector.build_connector_worker_meta()
        self._output = KVConnectorOutput(
            (before.finished_sending or set()) | (sent or set()),
            (before.finished_recving or set()) | (received or set()),
            connector.get_kv_connector_kv_cache_events(),
            noted.aggregate(meta) if noted is not None and meta is not None else meta or noted,
            before.invalid_block_ids | connector.get_block_ids_with_load_errors(),
        )
        connector.clear_connector_metadata()

    def report(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """Put what was noted into a step's results."""
        noted, self._output = self._output, None
        if noted is not None and not noted.is_empty():
            output.kv_connector_output = noted
        return output


@dataclass(slots=True)
class ConnectedAttention:
    """An attention whose layers are computed between their load and their save.

    Upstream: upstream/vllm/model_executor/layers/attention/kv_transfer_utils.py:15 — `maybe_transfer_kv_layer`.
    """

    attention: Any
    active: ActiveKVConnector

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """The callable for this step."""
        connector, caches = self.active.kv_connector, list(self.active.kv_caches.items())
        attn = self.attention.begin_step(metadata)

        def transfer(layer: int, q: Array, k: Array, v: Array) -> Array:
            name, kv_layer = caches[layer]
            connector.wait_for_layer_load(name)
            out = attn(layer, q, k, v)
            connector.save_kv_layer(name, kv_layer, metadata)
            return out

        return transfer
