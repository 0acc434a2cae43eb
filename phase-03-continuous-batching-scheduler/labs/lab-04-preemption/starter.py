"""Lab 03-04: what happens when a running request needs a block and none is left.

`Request` and `KVCacheManager` are the engine's own; the lists, the queue and the plan are plain Python.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mini_vllm import KVCacheManager, LLMEngine, Request, SamplingParams  # noqa: F401  (for you)


@dataclass(frozen=True)
class Report:
    """What a run cost. Given."""

    steps: int
    scheduled_tokens: int
    preemptions: int


def preempt_request(victim: Request, waiting: deque[Request], kv: KVCacheManager) -> None:
    """Take the blocks of a request that was just removed from `running`, and queue it before all others.

    Its status becomes PREEMPTED, nothing of it counts as computed any more, and its preemption is counted. Its output
    tokens stay.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:929 — `_preempt_request`.
    """
    raise NotImplementedError("a preempted request at the front of the queue, with its words and without its blocks")


def choose_victim(running: list[Request], policy: str = "fcfs") -> int:
    """The index in `running` of the request that the policy can best spare.

    "fcfs": the last one. "priority": the least urgent, which is the one with the largest `priority`; of equally urgent
    ones the latest `arrival_time`; of equals in both the last one. `running` stays as it is.
    """
    raise NotImplementedError("the index of the request that the policy can best spare")


def make_room(
    running: list[Request],
    index: int,
    num_new_tokens: int,
    plan: dict[str, int],
    waiting: deque[Request],
    kv: KVCacheManager,
    policy: str = "fcfs",
) -> int | None:
    """Get slots for `running[index]`; preempt others, one after the other, for as long as the cache refuses.

    A victim that has its share in `plan` already loses it, and those of its blocks that this step was to fill must not
    be found by anybody: `kv.evict_after(victim, victim.num_computed_tokens)`, before it is freed.

    Args:
        running: in the order of service; victims are removed.
        index: the request whose turn it is.
        num_new_tokens: what it is to compute; not entered in `plan` here.
        plan: request_id -> tokens, of the requests served before it in this step.
        waiting: victims go to its front.
        kv: gives the slots.
        policy: "fcfs" or "priority".

    Returns:
        The index at which the request stands now, or None where it was a victim itself and has no slots.
    """
    raise NotImplementedError("where the request stands when it has its slots, or None")


def run(prompts: list[str], num_blocks: int, block_size: int, max_tokens: int) -> list[list[int]]:
    """Serve all prompts together in the engine, greedily and past EOS, without prefix caching.

    Returns:
        The output token ids, in the order of the prompts.
    """
    raise NotImplementedError("the output token ids of each prompt")


def measure(prompts: list[str], num_blocks: int, block_size: int, max_tokens: int) -> Report:
    """The same run, told by its cost: steps, tokens that went through the model, preemptions."""
    raise NotImplementedError("the steps, tokens and preemptions of the run")


def recomputed_tokens(prompts: list[str], max_tokens: int, report: Report) -> int:
    """Tokens that the model computed a second time in a run of `measure`.

    The toy engine's tokens are a text's bytes.
    """
    raise NotImplementedError("the tokens that the model computed a second time")
