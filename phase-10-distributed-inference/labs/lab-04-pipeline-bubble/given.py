"""Given: a pipeline that decodes. Micro-batches go through the stages in order; who is through is ready again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Policy = Callable[[int, int, int, int], int]


@dataclass
class Found:
    """tokens: made in all. time: ms until the last was made. busy: share of the stages' time that is work.
    sizes: of the micro-batches, in the order of their start. waits: longest time in ms that a request was ready."""

    tokens: int = 0
    time: float = 0.0
    busy: float = 0.0
    sizes: list[int] = field(default_factory=list)
    waits: float = 0.0

    @property
    def throughput(self) -> float:
        """Tokens a second."""
        return 1e3 * self.tokens / self.time


@dataclass
class _Request:
    arrives: float
    left: int
    ready: float = 0.0


def all_ready(num_ready: int, num_running: int, in_flight: int, stages: int) -> int:
    """What the pinned release does: whoever is ready goes into the next micro-batch."""
    return num_ready


def simulate(
    policy: Policy, stages: int, jobs: Sequence[tuple[float, int]], fixed_ms: float = 1.0, row_ms: float = 0.05
) -> Found:
    """Decode all jobs.

    A micro-batch of n rows needs fixed_ms + n * row_ms on each stage, and there are at most `stages` of them on the
    way. Whenever the first stage is free, somebody is ready, and there is room, `policy` says how many of the ready
    ones, longest ready first, go in; 0 waits until something changes.

    Args:
        policy: (ready, running, in_flight, stages) -> how many. running: requests that are not finished, ready or on
            the way; in_flight: micro-batches on the way.
        jobs: (arrives in ms, tokens to make).

    Raises:
        RuntimeError: more than are ready, fewer than none, or nobody although nothing is on the way.
    """
    requests = [_Request(arrives, tokens, arrives) for arrives, tokens in sorted(jobs)]
    free_at, flying, found, now, work = [0.0] * stages, [], Found(), 0.0, 0.0
    waiting, ready = list(requests), []
    while waiting or ready or flying:
        done = [batch for batch in flying if batch[0] <= now]
        flying = [batch for batch in flying if batch[0] > now]
        for _, rows in done:
            for each in rows:
                each.left -= 1
                found.tokens += 1
                if each.left:
                    each.ready = now
                    ready.append(each)
        while waiting and waiting[0].arrives <= now:
            ready.append(waiting.pop(0))
        count = 0
        if ready and free_at[0] <= now and len(flying) < stages:
            running = len(ready) + sum(len(rows) for _, rows in flying)
            count = policy(len(ready), running, len(flying), stages)
            if not isinstance(count, int) or not 0 <= count <= len(ready):
                raise RuntimeError(f"{len(ready)} are ready, and the policy takes {count!r}")
        if count:
            rows, ready = ready[:count], ready[count:]
            found.waits = max(found.waits, *(now - each.ready for each in rows))
            found.sizes.append(count)
            at = now
            for stage in range(stages):
                at = max(at, free_at[stage]) + fixed_ms + count * row_ms
                work += fixed_ms + count * row_ms
                free_at[stage] = at
            flying.append((at, rows))
            continue
        later = [batch[0] for batch in flying] + [each.arrives for each in waiting[:1]]
        if ready and free_at[0] > now:
            later.append(free_at[0])
        if not later and ready:
            raise RuntimeError(f"{len(ready)} are ready, nothing is on the way, and the policy takes nobody")
        if later:
            now = min(later)
    found.time = now
    found.busy = work / (stages * now) if now else 0.0
    return found
