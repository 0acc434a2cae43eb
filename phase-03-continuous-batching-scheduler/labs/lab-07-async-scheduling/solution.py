"""Lab 03-07: plan step n + 1 while step n is still computing. No engine here: a clock, and the books of a few jobs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

EOS = 0


class Span(NamedTuple):
    """When a step was planned and when the GPU worked on it; milliseconds from the start. Given."""

    plan_start: float
    plan_end: float
    gpu_start: float
    gpu_end: float


@dataclass
class Job:
    """A request, and the tokens that the model will sample for it. Given."""

    request_id: str
    prompt_len: int
    script: list[int]
    max_tokens: int
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    output: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens whose ids are known: prompt and output."""
        return self.prompt_len + len(self.output)


@dataclass(frozen=True)
class Trace:
    """What a run planned, step by step, and how many planned tokens were for requests already at their end. Given."""

    plans: list[dict[str, int]]
    wasted: int


def timeline(cpu_ms: float, gpu_ms: float, steps: int, depth: int) -> list[Span]:
    """The steps of an engine that keeps up to `depth` of them in flight.

    A step needs `cpu_ms` of the CPU (take in an older result, plan, launch) and then `gpu_ms` of the GPU. Each of the
    two does one thing at a time. Step k may be planned when step k - 1 has been planned and step k - depth has left
    the GPU. depth 1 is `EngineCore.step`, depth 2 is `step_with_batch_queue`.
    """
    spans: list[Span] = []
    for k in range(steps):
        start = max(spans[k - 1].plan_end if k else 0.0, spans[k - depth].gpu_end if k >= depth else 0.0)
        planned = start + cpu_ms
        gpu_start = max(planned, spans[k - 1].gpu_end if k else 0.0)
        spans.append(Span(start, planned, gpu_start, gpu_start + gpu_ms))
    return spans


def cpu_and_gpu(sync_ms: float, async_ms: float) -> tuple[float, float]:
    """Infer (cpu_ms, gpu_ms) of a step from the time per step without and with async scheduling.

    Without it a step takes the sum, with it the larger of the two, which is taken to be the GPU.

    Raises:
        ValueError: "no cpu <= gpu has the sum S and the maximum A" (async slower than sync, or more than twice as
            fast).
    """
    if not async_ms <= sync_ms <= 2 * async_ms:
        raise ValueError(f"no cpu <= gpu has the sum {sync_ms} and the maximum {async_ms}")
    return sync_ms - async_ms, async_ms


def surely_over(job: Job) -> bool:
    """True when the tokens in flight are sure to bring the job to `max_tokens`: another step would be wasted.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:379 — "Async scheduling: Avoid scheduling an extra step".
    """
    return len(job.output) + job.num_output_placeholders >= job.max_tokens


def missing(job: Job) -> int:
    """Tokens that the next step should compute for the job; promised tokens count as if they were there.

    0 for a job that has finished or is surely over.
    """
    if job.finished or surely_over(job):
        return 0
    return job.num_tokens + job.num_output_placeholders - job.num_computed_tokens


def after_schedule(job: Job, num_scheduled: int) -> bool:
    """Count the planned tokens as computed; if that brings the job up to date, promise a token.

    Returns:
        True when a token was promised: this step will sample one for the job.

    Upstream: upstream/vllm/v1/core/sched/async_scheduler.py:18 — `_update_after_schedule`.
    """
    job.num_computed_tokens += num_scheduled
    due = job.num_computed_tokens == job.num_tokens + job.num_output_placeholders
    if due:
        job.num_output_placeholders += 1
    return due


def take(job: Job, token: int) -> None:
    """Put a sampled token in the place of its promise. EOS or the last of `max_tokens` finishes the job.

    Upstream: upstream/vllm/v1/core/sched/async_scheduler.py:37 — `_update_request_with_output`.
    """
    job.output.append(token)
    job.num_output_placeholders -= 1
    job.finished = token == EOS or len(job.output) == job.max_tokens


def run(jobs: list[Job], depth: int) -> Trace:
    """Serve all jobs with up to `depth` steps in flight; seats, budget and memory are ample, nobody arrives later.

    In each round: plan a step for all jobs that miss something. If the plan is not empty and fewer than `depth` steps
    are now in flight, go on planning; else take in the oldest step: every job that was promised a token in it takes the
    next one of its script, unless it has finished meanwhile. It ends when all jobs have finished; steps that are still
    in flight then are wasted as a whole. Scripts are read, not used up.

    Returns:
        All plans that were sent to the GPU (none is empty), and the tokens in them that belonged to a job which had
        finished by the time the step was taken in.

    Upstream: upstream/vllm/v1/engine/core.py:469 — `EngineCore.step_with_batch_queue`.
    """
    plans: list[dict[str, int]] = []
    in_flight: deque[tuple[dict[str, int], list[Job]]] = deque()
    wasted = 0
    while not all(job.finished for job in jobs):
        plan = {job.request_id: missing(job) for job in jobs if missing(job)}
        if plan:
            due = [job for job in jobs if job.request_id in plan and after_schedule(job, plan[job.request_id])]
            plans.append(plan)
            in_flight.append((plan, due))
            if len(in_flight) < depth:
                continue
        oldest, due = in_flight.popleft()
        wasted += sum(oldest.get(job.request_id, 0) for job in jobs if job.finished)
        for job in due:
            if not job.finished:
                take(job, job.script[len(job.output)])
    return Trace(plans, wasted + sum(sum(plan.values()) for plan, _ in in_flight))
