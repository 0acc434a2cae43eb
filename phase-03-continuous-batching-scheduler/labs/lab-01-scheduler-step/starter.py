"""Lab 03-01: one step of the scheduler, from two queues and three limits to a dictionary.

A request here is any object with `request_id`, `num_tokens` and `num_computed_tokens`; the engine's own `Request` is
one. The KV cache is any object with `allocate_slots(request, num_new_tokens)`, which returns a list of new block ids
(perhaps an empty one), or None where it has no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Req:
    """The least that a scheduler must know of a request. Given."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int = 0


@dataclass
class FakeKV:
    """A cache of `capacity` slots, one per token, for playing. Given."""

    capacity: int
    held: dict[str, int] = field(default_factory=dict)

    def allocate_slots(self, request: Any, num_new_tokens: int) -> list[int] | None:
        """Room for `num_new_tokens` more: [] on success, None (and nothing changed) where there is none."""
        if sum(self.held.values()) + num_new_tokens > self.capacity:
            return None
        self.held[request.request_id] = self.held.get(request.request_id, 0) + num_new_tokens
        return []

    def free(self, request: Any) -> None:
        """Take back all slots of a request."""
        self.held.pop(request.request_id, None)


def clamp(num_new_tokens: int, token_budget: int, long_prefill_token_threshold: int = 0) -> int:
    """Tokens that one request gets in this step.

    Args:
        num_new_tokens: what it lacks.
        token_budget: what is left of the step's budget.
        long_prefill_token_threshold: cap for one request; 0 means no cap.

    Returns:
        As many as it lacks and both limits allow; never less than 0.
    """
    raise NotImplementedError("the tokens that one request gets in this step")


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
    """Plan one step: which request computes how many tokens. The requests' counters stay as they are.

    RUNNING phase, in the order of `running`, while there is budget: a request that lacks nothing is passed over; the
    others ask the cache for room. Where it refuses, the last of `running` is removed and given to `preempt`, and the
    request asks again. The step ends at once when the request was the last itself, or when `preempt` is None.

    WAITING phase, not in a step in which the cache refused a running request: while there is budget and a free seat,
    the front of `waiting` asks for room. A refusal ends the phase: nobody overtakes. Who is admitted moves to the end
    of `running`.

    Args:
        running: requests that hold blocks, in the order of service; changed in place.
        waiting: requests that hold none, in the order of admission; changed in place.
        kv: the cache; None from `allocate_slots` is a refusal, an empty list is not.
        max_num_batched_tokens: the budget: tokens of one step.
        max_num_seqs: seats: requests in `running`.
        long_prefill_token_threshold: cap for one request and step; 0 means no cap.
        preempt: frees the blocks of a request and puts it back in the queue.

    Returns:
        request_id -> number of tokens (at least 1), in the order of scheduling.

    Raises:
        ValueError: "waiting request 'R' has nothing to compute": it could never be sampled. It stays where it is.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:329 — `Scheduler.schedule`.
    """
    raise NotImplementedError("who computes how many tokens in this step, with the two queues as they then stand")


def advance(requests: Iterable[Any], plan: dict[str, int]) -> list[str]:
    """Count the planned tokens as computed, and say who gets a token from this step.

    Args:
        requests: among them all of the plan; the others are left alone. They may come from an iterator.
        plan: what `schedule_step` returned; left as it is.

    Returns:
        The ids of those of the plan that have now caught up (`num_computed_tokens == num_tokens`), in the order of
        `requests`: exactly these are sampled.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:951 — `_update_after_schedule`.
    """
    raise NotImplementedError("the ids of those who get a token from this step, with the counters moved on")
