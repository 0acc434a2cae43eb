"""What brings keys and values in from elsewhere, and carries them out: the interface of every KV connector.

An engine has a connector in two halves, two objects of one class. The scheduler's half knows requests and block ids:
it says how many tokens of a prompt it has, and describes each step's transfers in an object of its own, the metadata,
which travels in the plan. The worker's half knows the arrays: it does what the metadata says, and reports what ended.

    scheduler's half                                worker's half
    get_num_new_matched_tokens
    update_state_after_alloc
    build_connector_meta      — the plan —>         bind_connector_metadata
                                                    start_load_kv, wait_for_layer_load
                                                    save_kv_layer, wait_for_save
    update_connector_output   <— KVConnectorOutput — get_finished, get_block_ids_with_load_errors
    request_finished

Upstream twins: `vllm/distributed/kv_transfer/kv_connector/base.py` and, for the class, `kv_connector/v1/base.py`. What
layouts and metrics need is left out.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionMetadata
    from mini_vllm.config.kv_transfer import KVTransferConfig
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.block_pool import BlockPool
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.distributed.kv_events import KVCacheEvent
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.outputs import KVConnectorOutput
    from mini_vllm.request import Request
    from mini_vllm.utils.arrays import Array


class KVConnectorRole(enum.Enum):
    """Which half an object is.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:124 — `KVConnectorRole`.
    """

    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(ABC):  # noqa: B024
    """What a step's transfers are, in the words of the connector: from its scheduler's half to its worker's half.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:141 — `KVConnectorMetadata`.
    """


class KVConnectorWorkerMetadata(ABC):
    """The way back: what each rank's half has to say to the scheduler's half.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:150 — `KVConnectorWorkerMetadata`.
    """

    @abstractmethod
    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """This one and another rank's, as one."""


class KVConnectorHandshakeMetadata(ABC):  # noqa: B024
    """What a rank's half has to say to the ranks of another engine, before anything is transferred.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:132 — `KVConnectorHandshakeMetadata`.
    """


class SupportsHMA(ABC):
    """Of a connector that is told the blocks of every KV cache group; without it a model may have only one.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:85 — `SupportsHMA`.
    """

    @abstractmethod
    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `KVConnectorBase_V1.request_finished`, with a list of block ids for each group."""


def supports_hma(connector: Any) -> bool:
    """Whether a connector, or a class of them, is a `SupportsHMA`.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:117 — `supports_hma`.
    """
    return issubclass(connector if isinstance(connector, type) else type(connector), SupportsHMA)


class KVConnectorBase_V1(ABC):
    """Either half of a connector; a subclass fills in the methods of both.

    Args:
        vllm_config: checked engine arguments, with a `kv_transfer_config`.
        role: which half this object is.
        kv_cache_config: the KV cache groups, and how many blocks there are.

    Raises:
        ValueError: the engine has no `kv_transfer_config`.

    Attributes:
        supports_tensor_parallel: whether a rank's half can be one of several. Upstream leaves that to the connector.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:171 — `KVConnectorBase_V1`.
    """

    supports_tensor_parallel: ClassVar[bool] = False

    def __init__(self, vllm_config: EngineConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        if vllm_config.kv_transfer_config is None:
            raise ValueError("kv_transfer_config must be set for a KV connector, got None")
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._kv_transfer_config: KVTransferConfig = vllm_config.kv_transfer_config
        self._connector_metadata: KVConnectorMetadata | None = None

    @property
    def role(self) -> KVConnectorRole:
        """Which half this is."""
        return self._role

    # The worker's half

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """A step begins; these are its transfers."""
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        """The step is over."""
        self._connector_metadata = None

    def has_connector_metadata(self) -> bool:
        """Whether a step is on."""
        return self._connector_metadata is not None

    def _get_connector_metadata(self) -> KVConnectorMetadata:
        assert self._connector_metadata is not None, "no step is on: bind_connector_metadata comes first"
        return self._connector_metadata

    def bind_worker(self, rank: int, attn_backend_name: str, resolved_model: Any) -> None:  # noqa: B027
        """Whose half this is: a rank, with an attention of that name, of a `ResolvedModel`. Called before
        `register_kv_caches`. Upstream's halves ask globals."""

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:  # noqa: B027
        """The arrays, once they are there: layer name -> [num_blocks, block_size, 2, num_kv_heads, head_dim], index 2
        being key and value; of MLA, [num_blocks, block_size, latent_dim]."""

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:  # noqa: B027
        """Called before anything of a step is computed: what a save still under way reads may be overwritten now."""

    @abstractmethod
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the loads of this step. They may go on in the background, beyond its end too.

        Args:
            forward_context: the arrays, as of `register_kv_caches`, which have room for them now; empty where nothing
                is computed in this step.
        """

    @abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return when a layer's loads for the requests of this step are done: its attention is about to read them."""

    @abstractmethod
    def save_kv_layer(self, layer_name: str, kv_layer: Array, attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Begin to save what a layer has just computed. kv_layer: its array, as of `register_kv_caches`."""

    @abstractmethod
    def wait_for_save(self) -> None:
        """Return when all saves of this step are done: the next step may overwrite what they read."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Which transfers in the background have ended.

        Args:
            finished_req_ids: requests that have ended since the last step.

        Returns:
            Ids of requests that are sent (of which `request_finished` said that their blocks are kept), and of those
            that are received (of which `get_num_new_matched_tokens` said that they load in the background). Each once.
        """
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that could not be filled, since the last call.

        Of a load in the background at the latest together with its end, which is reported all the same; of others in
        their step.
        """
        return set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What else the scheduler's half has to know of this step."""
        return None

    def get_kv_connector_kv_cache_events(self) -> Any:
        """Events that this rank has collected."""
        return None

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What ranks of other engines have to know of this one, once its arrays are there; None: nothing.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:417 —
        `KVConnectorBase_V1.get_handshake_metadata`.
        """
        return None

    def get_finished_count(self) -> int | None:
        """How many ranks report the end of a transfer; None: all of them."""
        return None

    def shutdown(self) -> None:  # noqa: B027
        """The engine ends."""

    # The scheduler's half

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:  # noqa: B027
        """The pool, for connectors that watch it."""

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, KVConnectorHandshakeMetadata]) -> None:  # noqa: B027
        """What the ranks' halves have to say, by rank; for whoever asks from outside.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:636 —
        `KVConnectorBase_V1.set_xfer_handshake_metadata`.
        """

    def on_new_request(self, request: Request) -> None:  # noqa: B027
        """A request has been queued."""

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens could be loaded, beyond those that are in the pool.

        It may be asked again and again before it comes to a load, and should change nothing.

        Args:
            num_computed_tokens: tokens from the front of the request that the pool has.

        Returns:
            The number of tokens that follow these, None for "ask again in the next step"; and whether they load in
            the background, between the steps (False where there are none).
            Of a request whose tokens load at once, at least one token has to be left to compute.
        """

    @abstractmethod
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The request has blocks, among them those of `num_external_tokens` tokens to be loaded.

        Of a load in the background it is called once when it begins, and once more, with 0, when the rest is given.
        """

    @abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """What the worker's half is to do in this step. Called once a step, with the finished plan, which it must not
        change; what was noted for the step is forgotten."""

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:  # noqa: B027
        """What the ranks' halves have reported."""

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended, and its blocks are about to be freed. Called once for each request.

        Returns:
            Whether they are to be kept until `get_finished` reports the request as sent; and what its output says to
            whoever goes on with it elsewhere (`RequestOutput.kv_transfer_params`).
        """
        return False, None

    def get_kv_connector_stats(self) -> dict[str, Any] | None:
        """What is counted since the engine was made, by the metric's name: a number, or of a histogram a dict of its
        `count`, `sum` and `buckets` (upper limit as text -> how many are at most that). None: nothing is.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/base.py:403 —
        `KVConnectorBase_V1.get_kv_connector_stats`, of the worker's half, and from one step to the next.
        """
        return None

    def take_events(self) -> Iterable[KVCacheEvent]:
        """KV cache events of the connector's own store, since the last call."""
        return ()

    def reset_cache(self) -> bool | None:
        """Forget all that is stored; None where a connector has no such thing, False where it could not."""
        return None
