"""Small stand-ins for tests of the control plane, and a port."""

from __future__ import annotations

import socket
from pathlib import Path

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

GOLDEN = Path(__file__).parent / "golden"
MODELS = Path(__file__).resolve().parents[2] / "models"
POCKET = MODELS / "pocket"
FEW_GRAPHS = [2**n for n in range(10)]
"""Up to the largest of the 51 usual sizes, which take nine times as long to capture: a step that finds a graph among
those finds one here, with more padding."""


def make_request(
    request_id: str,
    prompt: list[int] | int,
    *,
    block_size: int | None = None,
    priority: int = 0,
    arrival: float = 0.0,
    **params: object,
) -> Request:
    """A request of the given tokens, or of that many distinct ones."""
    tokens = list(range(prompt)) if isinstance(prompt, int) else prompt
    params = {"max_tokens": 16, "temperature": 0.0, "ignore_eos": True, **params}
    hasher = get_request_block_hasher(block_size) if block_size else None
    return Request(
        request_id, tokens, SamplingParams(**params), priority=priority, arrival_time=arrival, block_hasher=hasher
    )


def make_scheduler(
    num_blocks: int = 64, block_size: int = 4, caching: bool = True, max_model_len: int = 1024, **limits: object
) -> Scheduler:
    """A scheduler over a fresh pool."""
    manager = KVCacheManager(num_blocks, block_size, caching, max_model_len)
    config = SchedulerConfig(**limits)
    return (AsyncScheduler if config.async_scheduling else Scheduler)(config, manager, max_model_len)


def run_step(scheduler: Scheduler, token: int = 7) -> SchedulerOutput:
    """Plan a step and pretend that the model sampled `token` wherever a token was due."""
    output = scheduler.schedule()
    ids = list(output.num_scheduled_tokens)
    sampled = [[] if scheduler.requests[i].is_prefill_chunk else [token] for i in ids]
    scheduler.update_from_output(output, ModelRunnerOutput(ids, sampled))
    return output


def check_pool(pool: BlockPool) -> None:
    """The invariants of `BlockPool`."""
    free = pool.free_block_queue.get_all_free_blocks()
    assert len(free) == pool.get_num_free_blocks() == len({block.block_id for block in free})
    assert {block.block_id for block in free} == {b.block_id for b in pool.blocks if b.ref_cnt == 0 and not b.is_null}
    for block in pool.blocks:
        if block.block_hash is not None:
            held = pool.cached_block_hash_to_block._cache[block.block_hash]
            assert block is held or held[block.block_id] is block
    assert pool.null_block.block_hash is None and pool.null_block not in free


def check_scheduler(scheduler: Scheduler) -> None:
    """Queues, states, block tables and reference counts agree."""
    manager = scheduler.kv_cache_manager
    assert scheduler.running is scheduler.table.running and scheduler.waiting is scheduler.table.waiting
    check_pool(manager.block_pool)
    waiting = list(scheduler.waiting)
    assert {r.request_id for r in scheduler.running} | {r.request_id for r in waiting} == set(scheduler.requests)
    assert all(r.status == RequestStatus.RUNNING for r in scheduler.running)
    assert all(r.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) for r in waiting)
    assert set(manager.req_to_blocks) == {r.request_id for r in scheduler.running}
    users: dict[int, int] = {}
    for request in scheduler.running:
        (ids,) = manager.get_block_ids(request.request_id)
        assert len(set(ids)) == len(ids) and 0 not in ids
        assert len(ids) * manager.block_size >= request.num_computed_tokens
        for block_id in ids:
            users[block_id] = users.get(block_id, 0) + 1
    for block in manager.block_pool.blocks[1:]:
        assert block.ref_cnt == users.get(block.block_id, 0)


_KEPT: list[socket.socket] = []


def free_port():
    """A port that nobody else is given while this process lives; whoever binds it by its number, a server, may."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    return kept.getsockname()[1]
