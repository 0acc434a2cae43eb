"""Lab 15-01: a request that runs on one engine goes on running on another.

The engines are `given.Host`s: an `LLMEngine` with `read_kv`, `write_kv`, `introduce` and `dismiss` besides.
"""

from __future__ import annotations

import copy
from typing import Any

from mini_vllm import Request, RequestStatus


def predicted_tokens_at_d() -> tuple[int, int]:
    """Your prediction, before any code runs. A prompt of 25 tokens, 12 tokens asked for. P makes one step, and the
    request goes to D, which makes the rest.

    Returns:
        How many tokens D's model computes from then on: where the keys and values come along, and where only the tokens
        do.
    """
    return 11, 36


def export_request(engine: Any, request_id: str) -> dict[str, Any]:
    """Take a running request off an engine, so that another engine can go on with it.

    Afterwards nobody here knows the request, nothing of the pool is in use for it, and it has not ended: nobody gets
    an output that says so. What others do here is not disturbed.

    Args:
        engine: a `given.Host` between two steps. request_id: of a request that is RUNNING, whatever share of its
            prompt is computed.

    Returns:
        "request_id", "prompt_token_ids", "output_token_ids", "num_computed_tokens", "sampling_params", and "kv": the
        keys and values of the computed tokens, in a form that `import_request` understands on an engine with other
        blocks. All of it can be pickled, shares nothing with the engine, and "kv" has no more bytes than the blocks
        that the request held here.

    Raises:
        KeyError: "request 'r' is not on this engine". ValueError: "request 'r' is WAITING: only a running request can
            be exported". Nothing has changed then.
    """
    scheduler = engine.scheduler
    request = scheduler.requests.get(request_id)
    if request is None:
        raise KeyError(f"request {request_id!r} is not on this engine")
    if request.status != RequestStatus.RUNNING:
        raise ValueError(f"request {request_id!r} is {request.status}: only a running request can be exported")
    payload = {
        "request_id": request_id,
        "prompt_token_ids": list(request.prompt_token_ids),
        "output_token_ids": list(request.output_token_ids),
        "num_computed_tokens": request.num_computed_tokens,
        "sampling_params": copy.deepcopy(request.sampling_params),
        "kv": engine.read_kv(_slots(engine, request_id, request.num_computed_tokens)),
    }
    scheduler.running.remove(request)
    del scheduler.requests[request_id]
    scheduler.kv_cache_manager.free(request)
    engine.dismiss(request_id)
    return payload


def import_request(engine: Any, payload: dict[str, Any]) -> Request:
    """Let a request that was exported elsewhere run here, with nothing of it computed again.

    Afterwards it is as if it had always run here: RUNNING, with blocks for the tokens that are computed and for no
    more, and its full blocks can be found by others. The payload stays the caller's, and may be imported twice.

    Args:
        engine: a `given.Host` between two steps, of the same model. payload: what `export_request` gave.

    Raises:
        ValueError: "request_id 'r' belongs to an unfinished request"; what `KVCacheManager.check_fits` says, where the
            request could never be finished here; "kv does not hold the 25 tokens that num_computed_tokens claims"; or
            what `write_kv` says.
        RuntimeError: "no seat for request 'r': 4 of 4 run"; "no room for request 'r': its 25 computed tokens need more
            than the free blocks".
        In each case the engine is as it was before.
    """
    scheduler, request_id = engine.scheduler, payload["request_id"]
    manager, params = scheduler.kv_cache_manager, copy.deepcopy(payload["sampling_params"])
    if request_id in scheduler.requests:
        raise ValueError(f"request_id {request_id!r} belongs to an unfinished request")
    if len(scheduler.running) >= scheduler.max_num_running_reqs:
        raise RuntimeError(
            f"no seat for request {request_id!r}: {len(scheduler.running)} of {scheduler.max_num_running_reqs} run"
        )
    computed = payload["num_computed_tokens"]
    if len(payload["kv"]) != computed:
        raise ValueError(f"kv does not hold the {computed} tokens that num_computed_tokens claims")
    manager.check_fits(len(payload["prompt_token_ids"]), params.max_tokens)
    request = Request(
        request_id, list(payload["prompt_token_ids"]), params, block_hasher=engine.engine_core.block_hasher
    )
    for token_id in payload["output_token_ids"]:
        request.append_output_token_ids(token_id)
    if manager.allocate_slots(request, computed, delay_cache_blocks=True) is None:
        raise RuntimeError(
            f"no room for request {request_id!r}: its {computed} computed tokens need more than the free blocks"
        )
    try:
        engine.write_kv(_slots(engine, request_id, computed), payload["kv"])
    except ValueError:
        manager.free(request)
        raise
    manager.cache_blocks(request, computed)
    request.num_computed_tokens = computed
    request.status = RequestStatus.RUNNING
    scheduler.requests[request_id] = request
    scheduler.running.append(request)
    engine.introduce(request)
    return request


def run_to_completion(engine: Any, request: Request) -> list[int]:
    """Make steps until the request has ended.

    Returns:
        All its output tokens, those from before a move included.
    """
    while not request.is_finished():
        engine.step()
    return list(request.output_token_ids)


def _slots(engine: Any, request_id: str, num_tokens: int) -> list[int]:
    """Where this engine keeps the first tokens of a request, in their order."""
    size = engine.block_size
    (block_ids,) = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
    return [block_ids[position // size] * size + position % size for position in range(num_tokens)]
