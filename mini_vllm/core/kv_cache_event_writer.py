"""Writes down which blocks have become findable, and sends it, where somebody wants to know
(`distributed/kv_events.py`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mini_vllm.core.kv_cache_utils import generate_block_hash_extra_keys
from mini_vllm.distributed.kv_events import (
    MEDIUM_GPU,
    BlockStored,
    EventPublisher,
    KVEventBatch,
    maybe_convert_block_hash,
)
from mini_vllm.request import Request

if TYPE_CHECKING:
    from mini_vllm.core.kv_cache_manager import KVCacheManager
    from mini_vllm.core.single_type_kv_cache_manager import SingleTypeKVCacheManager


def write_down(
    manager: SingleTypeKVCacheManager,
    request: Request,
    hashes: Sequence[bytes],
    start: int,
    stop: int,
    mask: list[bool] | None,
) -> None:
    """The event (upstream/vllm/v1/core/block_pool.py:211 — `BlockPool.cache_full_blocks` — has it in the pool)."""
    size, blocks = manager.block_size, manager.req_to_blocks[request.request_id]
    stored = [i for i in range(start, stop) if not blocks[i].is_null and (mask is None or mask[i - start])]
    spec = manager.kv_cache_spec
    event = BlockStored(
        block_hashes=[maybe_convert_block_hash(hashes[i]) for i in stored],
        parent_block_hash=maybe_convert_block_hash(hashes[start - 1]) if start else None,
        token_ids=request.all_token_ids[start * size : stop * size],
        block_size=size,
        lora_id=None if request.lora_request is None else request.lora_request.lora_int_id,
        medium=MEDIUM_GPU,
        lora_name=None if request.lora_request is None else request.lora_request.lora_name,
        extra_keys=[generate_block_hash_extra_keys(request, i * size, (i + 1) * size) for i in stored] or None,
        group_idx=manager.kv_cache_group_id,
        kv_cache_spec_kind=spec.kind.value,
        kv_cache_spec_sliding_window=getattr(spec, "sliding_window", None) if manager.recycles else None,
    )
    manager.block_pool.kv_event_queue.append(event)


def publish_events(manager: KVCacheManager, publisher: EventPublisher, more: Any = None) -> None:
    """Send what became findable in this step, and what no longer is, if anything. more: has events of its own."""
    events = [*manager.take_events(), *(() if more is None else more.take_events())]
    if events:
        publisher.publish(KVEventBatch(time.time(), events))
