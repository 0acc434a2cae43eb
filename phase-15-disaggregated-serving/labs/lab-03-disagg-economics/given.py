"""Given: a P and a D between which a rule decides, request by request, who computes the prompt.

One clock, no randomness but the arrivals'. P computes one prompt at a time, in the order of arrival; the link carries
one payload at a time. D makes steps: each gives a token to every request that it has, and computes at most one chunk of
a prompt that stayed with it. A step takes `DECODE_STEP_S` and, with a chunk, the time of that chunk besides.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

DECODE_STEP_S, TOKENS_PER_S = 0.010, 10_000
KV_BYTES_PER_TOKEN, LINK_GBPS = 131_072, 200
ITL_PROMISE_S = 0.020
"""99 of 100 gaps between two tokens of a request are no longer."""


@dataclass
class Asked:
    """One request: `prompt_tokens` in, `output_tokens` out."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    times: list[float] = field(default_factory=list)

    @property
    def prefill_s(self) -> float:
        """Seconds of its prompt on a card that does nothing else."""
        return self.prompt_tokens / TOKENS_PER_S

    @property
    def is_good(self) -> bool:
        """It got its first token in time, and the others without stutter."""
        if self.times[0] - self.arrival > 0.1 + 2.5 * self.prefill_s:
            return False
        gaps = sorted(b - a for a, b in zip(self.times, self.times[1:], strict=False))
        return gaps[int(0.99 * (len(gaps) - 1))] <= ITL_PROMISE_S


Rule = Callable[[int, float], bool]


def workload(seconds: float = 60.0, seed: int = 1) -> list[Asked]:
    """Questions of 60 tokens, ten a second, and documents of 2,000, two a second; 100 tokens of answer for each."""
    rng, found = random.Random(seed), []
    for rate, prompt in ((10.0, 60), (2.0, 2000)):
        moment = rng.expovariate(rate)
        while moment < seconds:
            found.append(Asked(moment, prompt, 100))
            moment += rng.expovariate(rate)
    return sorted(found, key=lambda asked: asked.arrival)


def goodput(moves: Rule, requests: list[Asked] | None = None, chunk_tokens: int = 100) -> float:
    """Share of requests for which both promises were kept.

    Args:
        moves: (tokens of the prompt, seconds of work that wait at P) -> True where P computes the prompt.
        requests: `workload()` by default. chunk_tokens: of a prompt that stays with D, at most so many a step.
    """
    requests = workload() if requests is None else requests
    local, ready = _send(moves, requests)
    _decode(local, ready, chunk_tokens)
    return sum(asked.is_good for asked in requests) / len(requests)


def _send(moves: Rule, requests: list[Asked]) -> tuple[deque[Asked], deque[tuple[float, Asked]]]:
    """Who stays, and when the others have arrived at D."""
    p_free = link_free = 0.0
    local: deque[Asked] = deque()
    ready: list[tuple[float, Asked]] = []
    for asked in requests:
        if not moves(asked.prompt_tokens, max(0.0, p_free - asked.arrival)):
            local.append(asked)
            continue
        p_free = max(p_free, asked.arrival) + asked.prefill_s
        transfer = asked.prompt_tokens * KV_BYTES_PER_TOKEN * 8 / (LINK_GBPS * 1e9)
        link_free = max(link_free, p_free) + transfer
        ready.append((link_free, asked))
    return local, deque(ready)


def _decode(local: deque[Asked], ready: deque[tuple[float, Asked]], chunk_tokens: int) -> None:
    """D's steps, until everybody has all tokens."""
    now, left_of_prompt = 0.0, 0
    running: list[Asked] = []
    while local or ready or running:
        while ready and ready[0][0] <= now:
            running.append(ready.popleft()[1])
        has_local = bool(local) and local[0].arrival <= now
        if not running and not has_local:
            now = min([asked.arrival for asked in list(local)[:1]] + [moment for moment, _ in list(ready)[:1]])
            continue
        chunk = 0
        if has_local:
            left_of_prompt = left_of_prompt or local[0].prompt_tokens
            chunk = min(chunk_tokens, left_of_prompt)
            left_of_prompt -= chunk
        now += DECODE_STEP_S * bool(running) + chunk / TOKENS_PER_S
        for asked in running:
            asked.times.append(now)
        running = [asked for asked in running if len(asked.times) < asked.output_tokens]
        if has_local and not left_of_prompt:
            asked = local.popleft()
            asked.times.append(now)
            running.append(asked)


def replicas(count: int = 2, chunk_tokens: int = 100) -> float:
    """`goodput` of engines that do both, each with an equal share of the requests: what the same cards do unsplit,
    a prompt at a time, in the order of arrival."""
    requests = workload()
    for index in range(count):
        _decode(deque(requests[index::count]), deque(), chunk_tokens)
    return sum(asked.is_good for asked in requests) / len(requests)
