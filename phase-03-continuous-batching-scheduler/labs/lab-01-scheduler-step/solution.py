"""Lab 03-01: one step of the scheduler, from two queues and three limits to a dictionary.

A request here is any object with `request_id`, `num_tokens` and `num_computed_tokens`; the engine's own `Request` is
one. The KV cache is any object with `allocate_slots(request, num_new_tokens)`, which returns a list of new block ids
(perhaps an empty one) or None where it has no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


def clamp(num_new_tokens: int, token_budget: int, long_prefill_token_threshold: int = 0) -> int:
    """Tokens that one request gets in this step.

    Args:
        num_new_tokens: what it lacks.
        token_budget: what is left of the step's budget.
        long_prefill_token_threshold: cap for one request; 0 means no cap.

    Returns:
        At least 0, at most each of the three.
    """
    if 0 < long_prefill_token_threshold < num_new_tokens:
        num_new_tokens = long_prefill_token_threshold
    return max(min(num_new_tokens, token_budget), 0)


def schedule_step(
    running: list[Any],
    waiting: deque[Any],
    kv: Any,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    long_prefill_token_threshold: int = 0,
    preempt: Callable[[Any], None] | None = None,
) -> dict[str, int]:
    """Plan one step: which request computes how many tokens.

    First the running requests, in their order; one that lacks nothing, or gets nothing, is passed over. Where the
    cache refuses one of them, the last of `running` is removed and handed to `preempt`, and the request is tried again;
    when it was the last itself, nobody is left to give way and the running phase ends. Without `preempt` nobody can be
    removed: the running phase ends at the refusal.

    Then the waiting requests, from the front, unless the cache has refused a running request in this step: while there
    is budget and a seat, ask the cache for room; a refusal ends the phase, and nobody overtakes. Who is admitted moves
    to the end of `running`.

    The counters of the requests stay as they are (`advance` moves them).

    Args:
        running: requests with blocks, in the order of service; changed in place.
        waiting: requests without, in the order of admission; changed in place.
        kv: the cache; None from `allocate_slots` is a refusal, an empty list is not.
        max_num_batched_tokens: the budget, tokens of one step.
        max_num_seqs: seats, requests in `running`.
        long_prefill_token_threshold: cap for one request and step; 0 means no cap.
        preempt: takes the blocks of a request and puts it back in the queue.

    Returns:
        request_id -> number of tokens (at least 1), in the order of scheduling.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:329 — `Scheduler.schedule`.
    """
    plan: dict[str, int] = {}
    token_budget = max_num_batched_tokens
    refused = False

    index = 0
    while index < len(running) and token_budget > 0 and not refused:
        request = running[index]
        missing = request.num_tokens - request.num_computed_tokens
        num_new_tokens = clamp(missing, token_budget, long_prefill_token_threshold)
        if num_new_tokens == 0:
            index += 1
            continue
        if _allocate_or_preempt(request, num_new_tokens, running, kv, preempt):
            plan[request.request_id] = num_new_tokens
            token_budget -= num_new_tokens
            refused = running[-1] is not request and False
            index += 1
        else:
            refused = True
    return plan


def advance(requests: Iterable[Any], plan: dict[str, int]) -> list[str]:
    raise NotImplementedError
