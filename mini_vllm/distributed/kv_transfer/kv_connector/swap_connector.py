"""Preemption by swapping: the blocks of a request that has to give way are copied aside, and come back with it.

The scheduler preempts by recomputing: a victim's blocks go back to the pool, and its counter to 0. It knows nothing of
this file. When its plan names a victim, the blocks are in the pool still, and nobody has written over them: that
happens in the step that the plan is for. Before anything of the step is computed the worker's half copies them into
the host's memory (`handle_preemptions`), the last one too, which is not full. When the request comes back it has a head
start of all that it had computed, as if another engine had sent it.

`OffloadingConnector` nearly does the same: it stores every block that becomes full, whoever it belongs to, keeps it
when its request has ended, and finds it by the hash of its tokens. This one copies at a preemption and at no other
time, and keeps a copy until its request is back. Whether it is worth it, a `SwapPolicy` says.

Upstream has no twin. Its V1 recomputes, and what the engine before it swapped is left to connectors there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from mini_vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import did_you_mean, is_int, is_real, require
from mini_vllm.utils.math_utils import cdiv

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionMetadata
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.request import Request

SETTINGS = ("swap_blocks", "seconds_per_token", "bytes_per_second")
COUNTS = ("swapped_out_tokens", "swapped_in_tokens", "declined_requests", "no_room_requests")


class SwapPolicy(Protocol):
    """Says whether a victim's blocks are worth keeping."""

    def swaps(self, num_tokens: int, num_bytes: int) -> bool:
        """num_tokens: computed so far. num_bytes: of the blocks that hold them."""


@dataclass(frozen=True)
class CheaperPolicy:
    """Swaps where the two copies take less time than computing the tokens again.

    Args:
        seconds_per_token: of recomputing, at the length of a typical victim. bytes_per_second: of one copy.
    """

    seconds_per_token: float
    bytes_per_second: float

    def swaps(self, num_tokens: int, num_bytes: int) -> bool:
        """As `SwapPolicy.swaps`; out and in again are two copies."""
        return 2 * num_bytes / self.bytes_per_second < num_tokens * self.seconds_per_token


@dataclass
class SwapConnectorMetadata(KVConnectorMetadata):
    """Copies of a step: (blocks of the pool, places in the host's memory), both of one length."""

    out: list[tuple[list[int], list[int]]] = field(default_factory=list)
    back: list[tuple[list[int], list[int]]] = field(default_factory=list)


@dataclass(slots=True)
class _Running:
    """What the plans have said of a request: its blocks, and how many tokens are in them when the plan is computed."""

    block_ids: list[int]
    num_computed_tokens: int


@dataclass(slots=True)
class _Swapped:
    """A victim's copy."""

    num_tokens: int
    places: list[int]


class SwapConnector(KVConnectorBase_V1):
    """`kv_connector_extra_config={"swap_blocks": N}`: how many blocks the host's memory holds. With `seconds_per_token`
    and `bytes_per_second` there is a `CheaperPolicy`; without them every victim is swapped that finds room.

    Raises:
        ValueError: a setting is unknown, missing, or no such number.

    Attributes:
        counts: tokens and requests of victims by what became of them, by the names of `COUNTS`.
    """

    supports_tensor_parallel = True

    def __init__(self, vllm_config: EngineConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._num_places, self._policy = read_settings(self._kv_transfer_config.kv_connector_extra_config)
        self._block_size = vllm_config.block_size
        tensors = kv_cache_config.kv_cache_tensors
        self._bytes_per_block = sum(tensor.size for tensor in tensors) // kv_cache_config.num_blocks
        self._free_places = list(range(self._num_places))
        self._running: dict[str, _Running] = {}
        self._swapped: dict[str, _Swapped] = {}
        self._back: dict[str, tuple[list[int], list[int]]] = {}
        self._kv_caches: Mapping[str, Array] = {}
        self._host: dict[str, Array] = {}
        self.counts: Counter[str] = Counter()

    # The scheduler's half

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """What was copied at its preemption, beyond what the pool still has; it loads in the step."""
        return max(0, self._num_kept(request) - num_computed_tokens), False

    def _num_kept(self, request: Request) -> int:
        """Tokens that are as they should be. Rejected drafts may stand behind; the last token is always computed."""
        swapped = self._swapped.get(request.request_id)
        return 0 if swapped is None else min(swapped.num_tokens, request.num_tokens - 1)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """A request is back. What the pool has is not copied."""
        swapped = self._swapped.get(request.request_id)
        if swapped is None:
            return
        num_tokens = self._num_kept(request)
        first, end = (num_tokens - num_external_tokens) // self._block_size, cdiv(num_tokens, self._block_size)
        if not num_external_tokens:
            first = end
        self._back[request.request_id] = list(blocks.get_block_ids()[0][first:end]), swapped.places[first:end]
        self.counts["swapped_in_tokens"] += num_external_tokens

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> SwapConnectorMetadata:
        """Copy victims out, and those back that are admitted. Places that become free are used from the next step on:
        the worker copies out before it copies back."""
        meta = SwapConnectorMetadata(back=[pair for pair in self._back.values() if pair[0]])
        for request_id in sorted(scheduler_output.preempted_req_ids):
            if (running := self._running.pop(request_id, None)) is not None:
                meta.out += self._keep(request_id, running)
        for request_id in self._back:
            self._release(request_id)
        self._back.clear()
        self._note(scheduler_output)
        return meta

    def _keep(self, request_id: str, running: _Running) -> Iterator[tuple[list[int], list[int]]]:
        """The copy of a victim, if there is to be one. Its blocks end with the last token: drafts have slots
        behind it."""
        num_tokens = running.num_computed_tokens
        num_blocks = cdiv(num_tokens, self._block_size)
        if self._policy is not None and not self._policy.swaps(num_tokens, num_blocks * self._bytes_per_block):
            self.counts["declined_requests"] += 1
        elif num_blocks > len(self._free_places):
            self.counts["no_room_requests"] += 1
        elif num_blocks:
            places = [self._free_places.pop() for _ in range(num_blocks)]
            self._swapped[request_id] = _Swapped(num_tokens, places)
            self.counts["swapped_out_tokens"] += num_tokens
            yield running.block_ids[:num_blocks], places

    def _release(self, request_id: str) -> None:
        swapped = self._swapped.pop(request_id, None)
        if swapped is not None:
            self._free_places += swapped.places

    def _note(self, plan: SchedulerOutput) -> None:
        """Follow the block tables, as the worker does."""
        cached = plan.scheduled_cached_reqs
        before = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, block_ids, is_resumed in yield_req_data(plan):
            if is_resumed:  # after a reset no plan has named it as a victim
                self._running.pop(request_id, None)
            running = self._running.setdefault(request_id, _Running([], 0))
            running.block_ids += block_ids[0] if block_ids is not None else []
            running.num_computed_tokens = before[request_id] + plan.num_scheduled_tokens[request_id]

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Its copy goes, where it ends before it is back."""
        self._running.pop(request.request_id, None)
        self._release(request.request_id)
        return False, None

    def reset_cache(self) -> bool | None:
        """Who is away is computed again."""
        for request_id in list(self._swapped):
            self._release(request_id)
        return True

    def get_kv_connector_stats(self) -> dict[str, Any] | None:
        """`vllm:preempted_` and one of `COUNTS`: tokens copied either way, requests declined by the policy, and without
        room."""
        return {f"vllm:preempted_{name}": self.counts[name] for name in COUNTS}

    # The worker's half

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:
        """Take as much of the host's memory as the settings say."""
        self._kv_caches = kv_caches
        self._host = {
            name: np.zeros((self._num_places, *array.shape[1:]), array.dtype) for name, array in kv_caches.items()
        }

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Copy victims out, before anybody writes over their blocks."""
        assert isinstance(kv_connector_metadata, SwapConnectorMetadata)
        for block_ids, places in kv_connector_metadata.out:
            for name, array in self._kv_caches.items():
                self._host[name][places] = array[block_ids]

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy those back that run again in this step."""
        meta = self._get_connector_metadata()
        assert isinstance(meta, SwapConnectorMetadata)
        for block_ids, places in meta.back:
            for name, array in self._kv_caches.items():
                array[block_ids] = self._host[name][places]

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers are there before the first is computed."""

    def save_kv_layer(self, layer_name: str, kv_layer: Array, attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Nothing is saved while it is computed."""

    def wait_for_save(self) -> None:
        """Nothing is being saved."""


def read_settings(extra: Mapping[str, Any]) -> tuple[int, SwapPolicy | None]:
    """Places, and the policy where there is one. Raises ValueError as `SwapConnector`."""
    for key in extra:
        require(
            key in SETTINGS, "kv_connector_extra_config", key, f"{', '.join(SETTINGS)}{did_you_mean(key, SETTINGS)}"
        )
    places = extra.get("swap_blocks")
    name = "kv_connector_extra_config['swap_blocks']"
    require(is_int(places) and int(places or 0) >= 1, name, places, "a whole number of at least 1")
    costs = [extra.get(key) for key in SETTINGS[1:]]
    if costs == [None, None]:
        return int(places or 0), None
    for key, value in zip(SETTINGS[1:], costs, strict=True):
        good = is_real(value) and 0 < float(value or 0) < float("inf")
        require(good, f"kv_connector_extra_config[{key!r}]", value, "a positive number, as its neighbour")
    return int(places or 0), CheaperPolicy(*(float(value or 0) for value in costs))
