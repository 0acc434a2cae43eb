"""Lab 03-08: two policies in front of one engine, the steps that each takes, and what the steps cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mini_vllm import LLMEngine, SamplingParams


@dataclass(frozen=True)
class Job:
    """A request: `max_tokens` output tokens, always all of them. Given."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Served:
    """Output tokens of each job, and for each step the tokens computed for each job in it. Given."""

    token_ids: dict[str, list[int]]
    steps: list[dict[str, int]]


Policy = Callable[[int, tuple[Job, ...], int], list[Job]]
"""(unfinished jobs in the engine, jobs that wait in order of arrival, seats) -> the jobs to let in now."""


def predicted_gain() -> float:
    """Your prediction, before any code runs: time of static over time of continuous batching on pocket.

    32 jobs, 8 seats, prompts of 4 tokens, outputs of 8 tokens (25 jobs) or 64 (7 jobs), in random order. The two costs
    of a step of pocket stand in the README. Good to 5 %.
    """
    return 1.7


def static_policy(num_unfinished: int, waiting: tuple[Job, ...], seats: int) -> list[Job]:
    """A batch that enters together and has the engine to itself: nobody joins before its last job has ended.

    At most `seats` jobs; as many as can be. Which ones is your decision.
    """
    return [] if num_unfinished else list(waiting[:seats])


def continuous_policy(num_unfinished: int, waiting: tuple[Job, ...], seats: int) -> list[Job]:
    """No seat stays empty while a job waits, and no more than `seats` are taken. Who is next is your decision.

    There may be fewer seats than unfinished jobs: then nobody enters.
    """
    return list(waiting[: max(seats - num_unfinished, 0)])


def admit(policy: Policy, num_unfinished: int, waiting: list[Job], seats: int) -> list[Job]:
    """What the policy lets in, checked; taken out of `waiting`. Given.

    Raises:
        RuntimeError: "the policy admits nobody while 2 jobs wait and nothing runs", "the policy admits 3 to 0
            unfinished jobs, seats 2".
    """
    chosen = list(policy(num_unfinished, tuple(waiting), seats))
    if not chosen and waiting and not num_unfinished:
        raise RuntimeError(f"the policy admits nobody while {len(waiting)} jobs wait and nothing runs")
    if num_unfinished + len(chosen) > seats:
        raise RuntimeError(f"the policy admits {len(chosen)} to {num_unfinished} unfinished jobs, seats {seats}")
    for job in chosen:
        waiting.remove(job)
    return chosen


def check_seats(seats: int) -> None:
    """Raises ValueError: "seats must be at least 1, got 0". Given."""
    if seats < 1:
        raise ValueError(f"seats must be at least 1, got {seats}")


def serve(engine: LLMEngine, jobs: Sequence[Job], policy: Policy, seats: int) -> Served:
    """Serve all jobs greedily and past EOS; before each step the policy says who enters.

    The engine is idle at first, and has prefix caching off, and blocks and budget for all. It is left as it was found,
    idle and with its own `schedule`, also after an error; `jobs` too is left alone.

    Raises:
        ValueError, RuntimeError: see `check_seats` and `admit`.
    """
    check_seats(seats)
    waiting, unfinished = list(jobs), set()
    served = Served({}, [])
    schedule = engine.scheduler.schedule

    def probe(*args, **kwargs):
        output = schedule(*args, **kwargs)
        served.steps.append(dict(output.num_scheduled_tokens))
        return output

    engine.scheduler.schedule = probe
    try:
        while waiting or unfinished:
            for job in admit(policy, len(unfinished), waiting, seats):
                params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True)
                engine.add_request(job.request_id, {"prompt_token_ids": list(job.prompt_token_ids)}, params)
                unfinished.add(job.request_id)
            for output in engine.step():
                if output.finished:
                    served.token_ids[output.request_id] = list(output.outputs[0].token_ids)
                    unfinished.remove(output.request_id)
    finally:
        engine.scheduler.schedule = schedule
        engine.abort_request(sorted(unfinished))
    return served


def predict_steps(jobs: Sequence[Job], policy: Policy, seats: int) -> list[int]:
    """The rows (tokens computed) of each step that `serve` would take, without an engine, for any policy.

    Raises:
        ValueError, RuntimeError: as `serve`.
    """
    check_seats(seats)
    waiting, left, rows = list(jobs), {}, []
    while waiting or left:
        row = len(left)
        for job in admit(policy, len(left), waiting, seats):
            left[job.request_id] = job.max_tokens
            row += len(job.prompt_token_ids)
        rows.append(row)
        left = {name: missing - 1 for name, missing in left.items() if missing > 1}
    return rows


def total_ms(rows: Sequence[int], fixed_ms: float, per_row_ms: float) -> float:
    """Time of steps with these rows, where a step costs `fixed_ms`, and each of its rows `per_row_ms` more."""
    return fixed_ms * len(rows) + per_row_ms * sum(rows)


def gain(static_rows: Sequence[int], continuous_rows: Sequence[int], fixed_ms: float, per_row_ms: float) -> float:
    """How many times longer the static run takes: 2.0 is twice the time. 1.0 where neither takes any."""
    static, continuous = (total_ms(rows, fixed_ms, per_row_ms) for rows in (static_rows, continuous_rows))
    return static / continuous if continuous else 1.0
