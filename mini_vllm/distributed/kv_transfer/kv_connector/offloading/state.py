"""What the scheduler's half of the offloading connector keeps: sizes of each KV cache group, how far each request is.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, first part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from mini_vllm.kv_offload.base import OffloadingSpec, OffloadKey, ReqContext, make_offload_key
from mini_vllm.request import Request, RequestStatus
from mini_vllm.utils.math_utils import cdiv


class GroupOffloadConfig(NamedTuple):
    """A KV cache group: tokens of a block in the pool and of an offloaded one, hashes that the latter has, offloaded
    blocks that a window covers (None: full attention), and, of a window with blocks smaller than those of full
    attention, how many of them make one of those: hits end there, so that only the last ones before it are of use.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:61 — `GroupOffloadConfig`.
    """

    group_idx: int
    gpu_block_size: int
    offloaded_block_size: int
    hash_block_size_factor: int
    sliding_window_size_in_blocks: int | None
    alignment_block_count: int | None = None

    def is_of_use(self, block_idx: int) -> bool:
        """Whether a hit can ever need this block of a request."""
        if self.alignment_block_count is None or self.sliding_window_size_in_blocks is None:
            return True
        first = self.alignment_block_count - self.sliding_window_size_in_blocks
        return block_idx % self.alignment_block_count >= first


def get_sliding_window_size_in_blocks(spec: KVCacheSpec, offloaded_block_size: int) -> int | None:
    """Offloaded blocks that a window covers; None for full attention.

    Raises:
        ValueError: layers of another type, which are not offloaded. Upstream offloads states too.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:76 —
    `get_sliding_window_size_in_blocks`.
    """
    if isinstance(spec, SlidingWindowSpec):
        return cdiv(spec.sliding_window, offloaded_block_size)
    if not isinstance(spec, FullAttentionSpec):
        raise ValueError(
            "kv_connector='OffloadingConnector' serves layers of full and of sliding-window attention, got "
            f"{type(spec).__name__}"
        )
    return None


class SchedulerOffloadConfig(NamedTuple):
    """All groups; blocks of the pool that make an offloaded one; ranks that report each copy.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:91 —
    `SchedulerOffloadConfig`.
    """

    kv_group_configs: tuple[GroupOffloadConfig, ...]
    block_size_factor: int
    num_workers: int

    @classmethod
    def from_spec(cls, spec: OffloadingSpec) -> SchedulerOffloadConfig:
        """Raises ValueError as `get_sliding_window_size_in_blocks`."""
        sizes = [size * spec.block_size_factor for size in spec.gpu_block_size]
        specs = [group.kv_cache_spec for group in spec.kv_cache_config.kv_cache_groups]
        windows = [get_sliding_window_size_in_blocks(*pair) for pair in zip(specs, sizes, strict=True)]
        of_full = {size for size, window in zip(sizes, windows, strict=True) if window is None}
        aligned = of_full.pop() if len(of_full) == 1 else 0
        groups = []
        for i, (size, window) in enumerate(zip(sizes, windows, strict=True)):
            count = aligned // size if window is not None and window < aligned // size else None
            factor = size // spec.hash_block_size
            groups.append(GroupOffloadConfig(i, spec.gpu_block_size[i], size, factor, window, count))
        return cls(tuple(groups), spec.block_size_factor, spec.world_size)


@dataclass(slots=True)
class RequestGroupState:
    """Of a request and a group: keys of its full offloaded blocks, its blocks in the pool, the next block to be stored,
    and how many were hits when the request came.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:161 — `RequestGroupState`.
    """

    offload_keys: list[OffloadKey] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    next_stored_block_idx: int = 0
    num_hit_blocks: int = 0

    def last_block_ids(self, first: int, last: int, factor: int) -> Sequence[int]:
        """Of each of these offloaded blocks the last block in the pool, of `factor`; where that went with a window (id
        0), they all did."""
        return self.block_ids[first * factor + factor - 1 : last * factor : factor] if first < last else ()

    def block_ids_of(self, keys: set[OffloadKey], last: int, factor: int) -> tuple[list[int], int]:
        """The pool's blocks with these keys, from the next to be stored up to offloaded block `last`; and which block
        of the request the first one is."""
        wanted = [index for index in range(self.next_stored_block_idx, last) if self.offload_keys[index] in keys]
        at = [i for index in wanted for i in range(index * factor, (index + 1) * factor) if self.block_ids[i]]
        return [self.block_ids[i] for i in at], at[0] if at else 0


@dataclass(slots=True, eq=False)
class RequestOffloadState:
    """A request. `num_locally_computed_tokens`: its hits in the pool. `transfer_jobs`: numbers of the copies that are
    under way for it, either one load, or stores.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py:172 — `RequestOffloadState`.
    """

    config: SchedulerOffloadConfig
    req: Request
    group_states: tuple[RequestGroupState, ...] = ()
    req_context: ReqContext = field(init=False)
    num_locally_computed_tokens: int = 0
    transfer_jobs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.group_states = tuple(RequestGroupState() for _ in self.config.kv_group_configs)
        self.req_context = ReqContext(self.req.request_id, self.req.kv_transfer_params)

    @property
    def groups(self) -> list[tuple[GroupOffloadConfig, RequestGroupState]]:
        """Each group's sizes, and how far the request is in it."""
        return list(zip(self.config.kv_group_configs, self.group_states, strict=True))

    def update_offload_keys(self) -> None:
        """Keys of the blocks that have become full. An offloaded block has the hash of its last tokens."""
        for config, state in self.groups:
            step = config.hash_block_size_factor
            hashes = self.req.block_hashes[step * len(state.offload_keys) + step - 1 :: step]
            state.offload_keys += [make_offload_key(each, config.group_idx) for each in hashes]

    def forget_blocks(self) -> None:
        """It has no blocks in the pool any more."""
        for state in self.group_states:
            state.block_ids.clear()

    def add_blocks(self, new_block_ids: Sequence[Sequence[int]]) -> None:
        """It has got these, for each group."""
        for state, ids in zip(self.group_states, new_block_ids, strict=True):
            state.block_ids += ids

    def advance_stored_idx(self, num_offloadable_tokens: int) -> None:
        """All blocks of so many tokens are stored, or never will be."""
        for config, state in self.groups:
            state.next_stored_block_idx = num_offloadable_tokens // config.offloaded_block_size

    def store_again(self) -> None:
        """What it has stored is gone: from the first block on, but where a window may have given blocks back."""
        for config, state in self.groups:
            if config.sliding_window_size_in_blocks is None or self.req.status == RequestStatus.PREEMPTED:
                state.next_stored_block_idx = 0

    def update_num_hit_blocks(self, num_cached_tokens: int) -> None:
        """So many tokens were hits when it came."""
        for config, state in self.groups:
            state.num_hit_blocks = num_cached_tokens // config.offloaded_block_size
