"""Lab 01-03: the heartbeat of the engine, written by you."""

from typing import NamedTuple

import numpy as np

from mini_vllm import (  # noqa: F401  (ModelRunnerOutput is for you)
    EngineCoreOutput,
    ModelRunnerOutput,
    Request,
    Sampler,
    Scheduler,
    SchedulerOutput,
    ToyModel,
)


class Batch(NamedTuple):
    """All scheduled tokens of a step in one flat row, request after request.

    req_ids: the scheduled requests, in the order of their rows.
    input_ids, positions: `[num_tokens]` each, int64.
    logits_indices: `[num_reqs]`: where each request's last scheduled token stands in the flat row.
    due: `[num_reqs]`: whether the request has caught up, so that its row is to be sampled.
    """

    req_ids: list[str]
    input_ids: np.ndarray
    positions: np.ndarray
    logits_indices: np.ndarray
    due: list[bool]


def build_batch(output: SchedulerOutput, requests: dict[str, Request]) -> Batch:
    """Lay the plan out as arrays.

    `schedule()` has already moved each `num_computed_tokens` past this step's tokens: a request that was given n
    tokens computes its tokens number `num_computed_tokens - n` up to, not including, `num_computed_tokens`.

    Args:
        output: the plan; `num_scheduled_tokens` maps request id to n, in the order of scheduling. May be empty.
        requests: `scheduler.requests`.
    """
    raise NotImplementedError("lay the scheduled tokens out in one flat row; the counters have already moved past them")


def engine_step(scheduler: Scheduler, model: ToyModel, sampler: Sampler) -> list[EngineCoreOutput]:
    """One beat: plan, compute, pick, keep the books.

    Row i of the logits belongs to request i of the batch, and so does entry i of the answer. A request that has not
    caught up (a chunk of a prompt) gets the empty list. The scheduler is told of every step, also of one in which
    nothing was sampled or nothing was scheduled.

    Returns:
        What `scheduler.update_from_output` returns.
    """
    raise NotImplementedError(
        "schedule, run the model on the batch, sample the rows that are due, and call update_from_output"
    )
