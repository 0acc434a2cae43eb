"""What offloading is made of: keys of blocks, who knows where they are, and what a copy is from and to.

The pool keeps keys and values as long as it has room. Whoever offloads has a copy of the same blocks elsewhere, in the
host's memory or on a disk. Two parts do it: an `OffloadingManager` beside the scheduler knows which blocks are there,
and decides which one goes for another; handlers beside the arrays copy (`worker/worker.py`).

    lookup          is this block there, and complete?
    prepare_load    it is about to be read: nobody may take its place until complete_load
    touch           it was of use: let others go first
    prepare_store   find room for new blocks; nobody finds them until complete_store

The words are upstream's: "GPU" is the engine's own pool, whatever it runs on, "CPU" the host's memory.

Upstream twin: `vllm/v1/kv_offload/base.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NewType

import numpy as np

from mini_vllm.core.kv_cache_groups import resolve_kv_cache_block_sizes
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import is_int, shown

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.kv_offload.worker.worker import OffloadingHandler

OffloadKey = NewType("OffloadKey", bytes)
"""An offloaded block: the hash of its tokens and all before them, and the KV cache group, in the last four bytes."""


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """Upstream: upstream/vllm/v1/kv_offload/base.py:31 — `make_offload_key`."""
    return OffloadKey(block_hash + group_idx.to_bytes(4, "big"))


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """Upstream: upstream/vllm/v1/kv_offload/base.py:36 — `get_offload_block_hash`."""
    return key[:-4]


def get_offload_group_idx(key: OffloadKey) -> int:
    """Upstream: upstream/vllm/v1/kv_offload/base.py:41 — `get_offload_group_idx`."""
    return int.from_bytes(key[-4:], "big")


@dataclass
class ReqContext:
    """For whom something is done. Upstream: upstream/vllm/v1/kv_offload/base.py:47 — `ReqContext`."""

    req_id: str
    kv_transfer_params: dict[str, Any] | None = None


class LoadStoreSpec(ABC):
    """One end of a copy. Upstream: upstream/vllm/v1/kv_offload/base.py:52 — `LoadStoreSpec`."""

    @staticmethod
    @abstractmethod
    def medium() -> str:
        """A word for the kind of memory."""


@dataclass
class PrepareStoreOutput:
    """Which of the given blocks are to be written, where, and which ones have gone for them.

    Upstream: upstream/vllm/v1/kv_offload/base.py:69 — `PrepareStoreOutput`.
    """

    keys_to_store: list[OffloadKey]
    store_spec: LoadStoreSpec
    evicted_keys: list[OffloadKey]


@dataclass
class OffloadingEvent:
    """Blocks that can be found now, or (`removed`) no longer. Upstream:
    upstream/vllm/v1/kv_offload/base.py:76 — `OffloadingEvent`."""

    keys: list[OffloadKey]
    medium: str
    removed: bool


class OffloadingManager(ABC):
    """Knows which blocks are offloaded. Everything happens beside the scheduler, and nothing waits.

    Upstream: upstream/vllm/v1/kv_offload/base.py:110 — `OffloadingManager`.
    """

    def bind_model(self, model: str) -> None:  # noqa: B027
        """Which weights the blocks are of (`OffloadingSpec.names_model`). Called once, before anything else."""

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """Whether the block can be loaded. None: ask again in a later step."""

    @abstractmethod
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Where these blocks are, which are all there. Nobody takes their place until `complete_load`."""

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: B027
        """These blocks were of use. Blocks that are not there are passed over."""

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: B027
        """What `prepare_load` prepared has been read."""

    @abstractmethod
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Make room for those of these blocks that are not there; None, and nothing done, where there is none."""

    def complete_store(  # noqa: B027
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """What `prepare_store` prepared is written, and can be loaded; without `success` it is forgotten."""

    def forget(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: B027
        """A request with a fault has computed these blocks: nobody is to find them. Blocks that are being read stay.
        Upstream has no such thing."""

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What became loadable, and what has gone, since the last call. Called once a step, at its end."""
        return ()

    def reset_cache(self) -> None:  # noqa: B027
        """Forget all blocks, whatever is under way. `complete_load` and `complete_store` do not come for those."""

    def shutdown(self) -> None:  # noqa: B027
        """The engine ends."""


class BlockIDsLoadStoreSpec(LoadStoreSpec, ABC):
    """Blocks by their numbers, int64[n].

    Upstream: upstream/vllm/v1/kv_offload/base.py:231 — `BlockIDsLoadStoreSpec`.
    """

    def __init__(self, block_ids: Sequence[int]) -> None:
        self.block_ids: Array = np.array(block_ids, dtype=np.int64)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.block_ids.tolist()})"


class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Blocks of the engine's pool.

    Args:
        block_ids: those of the first KV cache group, then of the second, …
        group_sizes: how many blocks each group has among them.
        block_indices: which block of its request the first of each group is. An offloaded block may be larger than one
            of the pool: then this says how much of the first one is not meant.

    Upstream: upstream/vllm/v1/kv_offload/base.py:243 — `GPULoadStoreSpec`.
    """

    def __init__(self, block_ids: Sequence[int], group_sizes: Sequence[int], block_indices: Sequence[int]) -> None:
        super().__init__(block_ids)
        assert sum(group_sizes) == len(block_ids) and len(block_indices) == len(group_sizes)
        self.group_sizes, self.block_indices = group_sizes, block_indices

    @staticmethod
    def medium() -> str:
        """ "GPU"."""
        return "GPU"


@dataclass
class CanonicalKVCacheTensor:
    """One memory of the pool as bytes, uint8[num_blocks, page_size_bytes], a view.

    Upstream: upstream/vllm/v1/kv_offload/base.py:282 — `CanonicalKVCacheTensor`.
    """

    tensor: Array
    page_size_bytes: int


@dataclass
class CanonicalKVCacheRef:
    """Which memory a layer uses. Upstream: upstream/vllm/v1/kv_offload/base.py:299 — `CanonicalKVCacheRef`; pages are
    never padded here."""

    tensor_idx: int
    page_size_bytes: int


@dataclass
class CanonicalKVCaches:
    """All memories, and for each KV cache group those that its layers use.

    Upstream: upstream/vllm/v1/kv_offload/base.py:312 — `CanonicalKVCaches`.
    """

    tensors: list[CanonicalKVCacheTensor]
    group_data_refs: list[list[CanonicalKVCacheRef]]


class OffloadingSpec(ABC):
    """Which manager and which handlers; made in both halves of a connector.

    Args:
        vllm_config: checked engine arguments, with a `kv_transfer_config`.
        kv_cache_config: the KV cache groups, and how many blocks there are.

    Attributes:
        gpu_block_size: tokens of a block of each group. hash_block_size: tokens that a hash of a request stands for.
        block_size_factor: blocks of the pool that make an offloaded one. rank: whose part the handlers copy.
        names_model: whether the manager has to know the weights; its blocks outlive the engine then.

    Raises:
        ValueError: `kv_connector_extra_config["block_size"]`, tokens of an offloaded block, is no multiple of the
            pool's block, or the groups have blocks of several sizes.

    Upstream: upstream/vllm/v1/kv_offload/base.py:331 — `OffloadingSpec`.
    """

    names_model: ClassVar[bool] = False

    def __init__(self, vllm_config: EngineConfig, kv_cache_config: KVCacheConfig) -> None:
        self.rank = 0
        self.vllm_config, self.kv_cache_config = vllm_config, kv_cache_config
        self.extra_config: dict[str, Any] = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.world_size = vllm_config.tensor_parallel_size * vllm_config.pipeline_parallel_size
        groups = kv_cache_config.kv_cache_groups
        self.gpu_block_size = tuple(group.kv_cache_spec.block_size for group in groups)
        self.hash_block_size = resolve_kv_cache_block_sizes(groups)[1]
        self.block_size_factor = 1
        size = self.extra_config.get("block_size")
        if size is not None:
            sizes = sorted(set(self.gpu_block_size))
            if len(sizes) != 1 or not is_int(size) or size < 1 or size % sizes[0]:
                raise ValueError(
                    "kv_connector_extra_config['block_size'] must be a multiple of the block size of all KV cache "
                    f"groups ({', '.join(map(str, sizes))}), got {shown(size)}"
                )
            self.block_size_factor = size // sizes[0]

    def bind_worker(self, rank: int) -> None:
        """Whose handlers are to be made."""
        self.rank = rank

    def setting(self, name: str, default: int, minimum: int) -> int:
        """A whole number of `kv_connector_extra_config`. Raises ValueError where it is none, or too small."""
        value = self.extra_config.get(name, default)
        if not is_int(value) or value < minimum:
            allowed = f"a whole number of at least {minimum}"
            raise ValueError(f"kv_connector_extra_config[{name!r}] must be {allowed}, got {shown(value)}")
        return int(value)

    @abstractmethod
    def get_manager(self) -> OffloadingManager:
        """The manager, for the scheduler's half."""

    @abstractmethod
    def get_handlers(
        self, kv_caches: CanonicalKVCaches
    ) -> Iterator[tuple[type[LoadStoreSpec], type[LoadStoreSpec], OffloadingHandler]]:
        """The handlers, for the worker's half, each with what it copies from and to."""
