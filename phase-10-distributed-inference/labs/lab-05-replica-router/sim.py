"""Given: four replicas with prefix caches, traffic of tenants with long common prefixes, and a clock in ticks."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 16
PREFIX, OWN = 512, 48  # tokens of a prompt: its tenant's, its own
TENANTS = 12


def keys_of(prompt_token_ids: Sequence[int], block_size: int = BLOCK) -> list[int]:
    """A key for each full block of a prompt; it stands for the block and all before it, as in the engine's cache."""
    keys, above = [], 0
    for start in range(0, len(prompt_token_ids) - block_size + 1, block_size):
        above = hash((above, tuple(prompt_token_ids[start : start + block_size])))
        keys.append(above)
    return keys


@dataclass
class Request:
    """A prompt, its outputs, and when it came. first: the tick in which its first token was ready."""

    arrives: int
    prompt: list[int]
    outputs: int
    keys: list[int] = field(default_factory=list)
    to_compute: int = 0
    made: int = 0
    first: int = -1


class Replica:
    """An engine: seats, a budget of tokens a tick (decodes first), and a cache of blocks; the oldest go first."""

    def __init__(self, seats: int = 16, budget: int = 256, cache_blocks: int = 160) -> None:
        self.seats, self.budget, self.cache_blocks = seats, budget, cache_blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.hit_tokens = self.prompt_tokens = self.done = 0

    @property
    def counts(self) -> tuple[int, int]:
        """(waiting, running)."""
        return len(self.waiting), len(self.running)

    def tick(self, now: int) -> None:
        """One step: who runs, then who is admitted; each first token and each next one is made in some tick."""
        budget = self.budget
        for each in self.running:
            if not each.to_compute:
                budget -= 1
                each.made += 1
        for each in self.running:
            if each.to_compute and budget > 0:
                budget = self._prefill(each, budget, now)
        while self.waiting and len(self.running) < self.seats and budget > 0:
            each = self.waiting.popleft()
            self._look_up(each)
            self.running.append(each)
            budget = self._prefill(each, budget, now)
        self.done += sum(each.made >= each.outputs for each in self.running)
        self.running = [each for each in self.running if each.made < each.outputs]

    def _look_up(self, request: Request) -> None:
        hits = 0
        for key in request.keys:
            if key not in self.cache:
                break
            hits += 1
        cached = min(hits * BLOCK, len(request.prompt) - 1)
        request.to_compute = len(request.prompt) - cached
        self.hit_tokens += cached
        self.prompt_tokens += len(request.prompt)

    def _prefill(self, request: Request, budget: int, now: int) -> int:
        share = min(budget, request.to_compute)
        request.to_compute -= share
        if not request.to_compute:
            request.made, request.first = 1, now
            for key in reversed(request.keys):  # a prefix loses its tail first
                self.cache[key] = None
                self.cache.move_to_end(key)
            while len(self.cache) > self.cache_blocks:
                self.cache.popitem(last=False)
        return budget - share


def workload(skew: float, n: int = 400, per_tick: float = 1.5, outputs: int = 32, seed: int = 0) -> list[Request]:
    """Requests of twelve tenants; tenant t has a share of 1 / (t + 1) ** skew of them. skew 0: all alike."""
    chance = random.Random(seed)
    prefixes = [[chance.randrange(1000) for _ in range(PREFIX)] for _ in range(TENANTS)]
    weights, at, requests = [1 / (t + 1) ** skew for t in range(TENANTS)], 0.0, []
    for _ in range(n):
        at += chance.expovariate(per_tick)
        (tenant,) = chance.choices(range(TENANTS), weights)
        prompt = prefixes[tenant] + [chance.randrange(1000) for _ in range(OWN)]
        requests.append(Request(int(at), prompt, outputs, keys_of(prompt)))
    return requests


def simulate(router: Any, requests: Sequence[Request], replicas: int = 4, every: int = 4) -> dict[str, Any]:
    """Serve all; the router hears the counts every `every` ticks, as they were then.

    Returns:
        "hit_rate": cached over asked prompt tokens. "mean", "p95": ticks from arrival to first token. "ticks": until
        all are done. "imbalance": requests of the busiest replica over the mean. "queues": per tick, the waiting ones
        of each replica.
    """
    requests = [Request(r.arrives, list(r.prompt), r.outputs, r.keys) for r in requests]
    engines, sent, queues, now = [Replica() for _ in range(replicas)], [0] * replicas, [], 0
    pending = deque(requests)
    while pending or any(any(engine.counts) for engine in engines):
        if now % every == 0:
            router.update([engine.counts for engine in engines])
        while pending and pending[0].arrives <= now:
            request = pending.popleft()
            at = router.route(request.prompt)
            engines[at].waiting.append(request)
            sent[at] += 1
        for engine in engines:
            engine.tick(now)
        queues.append([len(engine.waiting) for engine in engines])
        now += 1
    waits = sorted(request.first - request.arrives for request in requests)
    return {
        "hit_rate": sum(e.hit_tokens for e in engines) / sum(e.prompt_tokens for e in engines),
        "mean": sum(waits) / len(waits) + 1,
        "p95": waits[int(0.95 * len(waits))] + 1,
        "ticks": now,
        "imbalance": max(sent) / (sum(sent) / replicas),
        "queues": queues,
    }
