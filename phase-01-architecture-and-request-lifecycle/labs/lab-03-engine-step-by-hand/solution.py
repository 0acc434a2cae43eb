"""Lab 01-03: the heartbeat of the engine, written by you."""

from typing import NamedTuple

import numpy as np

from mini_vllm import EngineCoreOutput, ModelRunnerOutput, Request, Sampler, Scheduler, SchedulerOutput, ToyModel


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
    """The plan as arrays: what the model is to compute in this step, and which rows of it matter.

    The plan was made by `schedule()`, which has already counted this step's tokens into `num_computed_tokens`. Plan and
    requests are not changed.

    Args:
        output: the plan; `num_scheduled_tokens` maps request id to n, in the order of scheduling. May be empty.
        requests: `scheduler.requests`.
    """
    ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    due: list[bool] = []
    for request_id, n in output.num_scheduled_tokens.items():
        request = requests[request_id]
        end = request.num_computed_tokens
        ids += request.all_token_ids[end - n : end]
        positions += range(end - n, end)
        ends.append(len(ids) - 1)
        due.append(not request.is_prefill_chunk)
    arrays = (np.array(x, dtype=np.int64) for x in (ids, positions, ends))
    return Batch(list(output.num_scheduled_tokens), *arrays, due)


def engine_step(scheduler: Scheduler, model: ToyModel, sampler: Sampler) -> list[EngineCoreOutput]:
    """One beat: plan, compute, pick, keep the books.

    The model runs once, over the scheduled tokens alone, and makes logits for at most one row of each request. Every
    request that has caught up gets one token, chosen with its own parameters; a request that has not (a chunk of a
    prompt) gets the empty list. The scheduler is told of every step, also of one in which nothing was sampled or
    nothing was scheduled.

    Returns:
        What `scheduler.update_from_output` returns.
    """
    output = scheduler.schedule()
    batch = build_batch(output, scheduler.requests)
    hidden = model.forward(batch.input_ids, batch.positions, None)
    logits = model.compute_logits(hidden[batch.logits_indices])
    sampled: list[list[int]] = []
    for i, request_id in enumerate(batch.req_ids):
        params = scheduler.requests[request_id].sampling_params
        sampled.append([sampler.sample(logits[i], params)] if batch.due[i] else [])
    return scheduler.update_from_output(output, ModelRunnerOutput(batch.req_ids, sampled))
