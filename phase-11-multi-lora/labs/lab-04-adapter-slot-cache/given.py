"""Given material: a server with slots, in steps. Nothing to edit here.

A request needs its adapter in a slot from the step in which it is admitted until it ends. Each step first lets go of
those that have ended, then takes new ones from the queue, as a gate says, and works on all that run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Waiting(NamedTuple):
    """A request in the queue. adapter: its adapter's number, None: the base. waited: steps that it has stood there."""

    adapter: int | None
    waited: int


@dataclass
class Job:
    """arrives: in which step. adapter: a number, or None. length: steps that it runs. admitted: in which, None: not
    yet."""

    arrives: int
    adapter: int | None
    length: int
    admitted: int | None = None


@dataclass
class Result:
    """finished: jobs that ran to their end. waits: adapter -> the longest wait of its jobs, of those that still stand
    in the queue too. worst_step: most different adapters in a step. broken: the first rule that the gate broke."""

    finished: int = 0
    waits: dict[int | None, int] = field(default_factory=dict)
    worst_step: int = 0
    broken: str = ""


Gate = Callable[[Sequence[Waiting], Sequence["int | None"], int], Sequence[int]]
"""(queue, adapters of the running requests, free seats) -> places in the queue that are admitted."""


def simulate(gate: Gate, jobs: list[Job], max_loras: int, seats: int, steps: int) -> Result:
    """Run `steps` steps. jobs: in the order of their arrival; they are noted in, so pass fresh ones."""
    result, queue, running = Result(), [], []
    todo = list(jobs)
    for step in range(steps):
        while todo and todo[0].arrives <= step:
            queue.append(todo.pop(0))
        ended = [job for job in running if job.admitted + job.length <= step]
        result.finished += len(ended)
        running = [job for job in running if job not in ended]
        room = seats - len(running)
        seen = [Waiting(job.adapter, step - job.arrives) for job in queue]
        chosen = list(gate(seen, [job.adapter for job in running], room))
        if not result.broken:
            result.broken = _check(chosen, seen, [job.adapter for job in running], room, max_loras, step)
        if result.broken:
            return result
        for place in chosen:
            queue[place].admitted = step
        running += [queue[place] for place in chosen]
        queue = [job for place, job in enumerate(queue) if place not in chosen]
        result.worst_step = max(result.worst_step, len({job.adapter for job in running} - {None}))
    for job in jobs:
        if job.arrives < steps:
            wait = (steps if job.admitted is None else job.admitted) - job.arrives
            result.waits[job.adapter] = max(result.waits.get(job.adapter, 0), wait)
    return result


def _check(
    chosen: list[int], queue: list[Waiting], running: list[int | None], room: int, max_loras: int, step: int
) -> str:
    if len(set(chosen)) < len(chosen) or not all(0 <= place < len(queue) for place in chosen):
        return f"step {step}: admitted places {chosen} of a queue of {len(queue)}"
    if len(chosen) > room:
        return f"step {step}: {len(chosen)} admitted, {room} seats are free"
    distinct = {*running, *(queue[place].adapter for place in chosen)} - {None}
    if len(distinct) > max_loras:
        return f"step {step}: {len(distinct)} different adapters run, there are {max_loras} slots"
    return ""


def two_hot_one_cold(cold: Sequence[tuple[int, int]] = ((10, 3),), steps: int = 400) -> list[Job]:
    """Adapters 1 and 2 get a request every four steps, which runs for eight, so that there is always one under way.
    `cold`: (step, adapter) of the others, which run for eight steps too."""
    jobs = [Job(step, 1 + step // 2 % 2, 8) for step in range(0, steps, 2)]
    jobs += [Job(step, adapter, 8) for step, adapter in cold]
    return sorted(jobs, key=lambda job: job.arrives)
