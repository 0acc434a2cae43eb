"""What others may know of the prefix cache: which blocks can be found now, and which no longer can.

A router that follows the events of several engines sends a prompt to the one that holds its prefix. The pool writes
the events down, the scheduler takes them after each step as one batch, a publisher sends the batch.

On the wire a batch is a msgpack array, `[ts, [event, …], rank]`; an event is its name and its fields in their order.
Upstream twin: `vllm/distributed/kv_events.py`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

ExternalBlockHash = bytes | int
"""A hash as others see it: by default its last 64 bits as a number."""
MEDIUM_GPU = "GPU"
"""The word for the engine's own pool, whatever it runs on; offloaded blocks have another."""


def maybe_convert_block_hash(block_hash: bytes) -> ExternalBlockHash:
    """The hash in an event: a number, or the bytes themselves where VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is 0.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:77 — `maybe_convert_block_hash`.
    """
    if os.environ.get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1") == "0":
        return block_hash
    return int.from_bytes(block_hash[-8:], "big")


@dataclass(slots=True)
class KVCacheEvent:
    """Upstream: upstream/vllm/distributed/kv_events.py:36 — `KVCacheEvent`."""


@dataclass(slots=True)
class BlockStored(KVCacheEvent):
    """Blocks of one request that became findable together, `block_size` tokens each.

    `parent_block_hash`: of the block before them, None at the start of a text. `extra_keys`: one entry for each block,
    None where its hash is of tokens alone. `group_idx`: the KV cache group; `kv_cache_spec_kind` and the window say of
    which type it is.

    Upstream: upstream/vllm/distributed/kv_events.py:49 — `BlockStored`.
    """

    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


@dataclass(slots=True)
class BlockRemoved(KVCacheEvent):
    """Blocks that can no longer be found. Upstream: upstream/vllm/distributed/kv_events.py:93 — `BlockRemoved`."""

    block_hashes: list[ExternalBlockHash]
    medium: str | None
    group_idx: int | None = None


@dataclass(slots=True)
class AllBlocksCleared(KVCacheEvent):
    """The prefix cache was reset. Upstream: upstream/vllm/distributed/kv_events.py:108 — `AllBlocksCleared`."""


@dataclass(slots=True)
class KVEventBatch:
    """The events of one step; `ts`: seconds since 1970; `data_parallel_rank`: whose they are.

    Upstream: upstream/vllm/distributed/kv_events.py:112 — `KVEventBatch`.
    """

    ts: float
    events: list[KVCacheEvent]
    data_parallel_rank: int | None = None


class EventPublisher(ABC):
    """Sends batches of events on, in order.

    Upstream: upstream/vllm/distributed/kv_events.py:233 — `EventPublisher`.
    """

    @abstractmethod
    def publish(self, events: KVEventBatch) -> None:
        """Take a batch; does not wait until it is sent."""

    def shutdown(self) -> None:  # noqa: B027
        """Send what is left, and end; nothing, where nothing is queued."""


def to_wire(value: KVEventBatch | KVCacheEvent) -> list[Any]:
    """The array that is packed: what upstream's `msgspec.Struct` with `array_like` and `tag` becomes."""
    if isinstance(value, KVEventBatch):
        return [value.ts, [to_wire(event) for event in value.events], value.data_parallel_rank]
    return [type(value).__name__, *(getattr(value, f.name) for f in fields(value))]
