"""A step on many ranks, on paper: what is cut, what is sent, who is late. `benchmarks/scale.py` holds it against runs.

Everything is in seconds and bytes. A step of decode is the sum of what its ranks do and of the meetings at which they
wait for the last one:

    stage = outside + layers / stages * layer / ranks-of-it + meetings * (wire + lateness of the last rank)
    tick  = the slowest stage + a handover         one batch leaves the pipeline with each tick
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Link:
    """A wire between ranks: bytes a second, and seconds until the first byte arrives."""

    bandwidth: float
    latency: float

    def all_reduce(self, payload: float, ranks: int) -> float:
        """Seconds of a sum of `payload` bytes: the ring, or each reads all others at once, whichever is quicker."""
        if ranks == 1:
            return 0.0
        ring = 2 * (ranks - 1) / ranks * payload / self.bandwidth + 2 * (ranks - 1) * self.latency
        return min(ring, (ranks - 1) * payload / self.bandwidth + 2 * self.latency)

    def send(self, payload: float) -> float:
        """Seconds of a message from one rank to another."""
        return payload / self.bandwidth + self.latency


@dataclass(frozen=True)
class Step:
    """What one rank would do alone in a decode step of so many rows: measured, or computed by `on_gpu`.

    Attributes:
        outside: seconds outside of the layers, which no cut makes smaller. head: of the output matrix, which TP cuts.
        layer: of one layer, the part that TP cuts; fixed: the part of a layer that it does not.
        layers: how many. payload: bytes of the hidden states of all rows.
    """

    outside: float
    head: float
    layer: float
    fixed: float
    layers: int
    payload: float

    def alone(self) -> float:
        """Seconds of a step on one rank."""
        return self.outside + self.head + self.layers * (self.layer + self.fixed)


@dataclass(frozen=True)
class Lateness:
    """How much later than the others a rank comes to a meeting: now and then, by an exponential time.

    Attributes:
        share: of the meetings to which a rank comes late. mean: seconds, of those.
    """

    share: float = 0.0
    mean: float = 0.0

    def of_the_last(self, ranks: int, meetings: int, rng: np.random.Generator, steps: int) -> np.ndarray:
        """[steps] seconds that a step's meetings take longer, because all wait for the last of `ranks`.

        The maximum of n exponential times is drawn by its law, -mean * log(1 - u ** (1 / n)): how many are late at a
        meeting is binomial. Nothing is kept from one meeting to the next.
        """
        if ranks == 1 or not self.share:
            return np.zeros(steps)
        late = rng.binomial(ranks, self.share, (steps, meetings))
        u = rng.random((steps, meetings))
        return np.where(late > 0, -self.mean * np.log1p(-(u ** (1 / np.maximum(late, 1)))), 0.0).sum(axis=1)


@dataclass(frozen=True)
class Layout:
    """How ranks are laid out: tp ranks share each layer, pp stages share the layers, dp replicas share the requests."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def ranks(self) -> int:
        """Of all replicas."""
        return self.tp * self.pp * self.dp


def tick(step: Step, layout: Layout, inside: Link, between: Link) -> float:
    """Seconds from one batch to the next, nobody late: the slowest stage, which is the last one, and its handover."""
    layers = -(-step.layers // layout.pp)
    work = step.outside + step.head / layout.tp + layers * (step.layer / layout.tp + step.fixed)
    sums = meetings(layers) * inside.all_reduce(step.payload, layout.tp) if layout.tp > 1 else 0.0
    return work + sums + (between.send(step.payload) if layout.pp > 1 else 0.0)


def meetings(layers: int) -> int:
    """Sums of a stage with so many layers: two each, the embedding's, and the gather of the logits."""
    return 2 * layers + 2


def tokens_per_second(step: Step, rows: int, layout: Layout, inside: Link, between: Link) -> float:
    """Of all replicas, with a batch of `rows` under way in each stage."""
    return layout.dp * rows / tick(step, layout, inside, between)


def on_gpu(weights: float, layers: int, hidden: int, rows: int, kv_bytes: float, bandwidth: float) -> Step:
    """A decode step that reads all its weights and `kv_bytes` of cache once, in 16 bits, at `bandwidth` bytes/s.

    What a device does besides is left out, so this is a bound; a batch so large that arithmetic decides is none of its
    business.
    """
    return Step(0.0, 0.0, (2 * weights + kv_bytes) / layers / bandwidth, 0.0, layers, rows * hidden * 2.0)


def requests_lost(ranks_a_replica: int, replicas: int, hours_between_failures: float, minutes_down: float) -> float:
    """Share of all capacity that is down: one device that fails takes its whole replica along until it is back."""
    return min(1.0, ranks_a_replica * minutes_down / 60 / hours_between_failures) if replicas else 1.0


def waiting(
    replicas: int, seats: int, load: float, clients: int, rng: np.random.Generator, report: float = 0.1
) -> float:
    """Share of the requests that wait although some replica had a free seat when they came.

    Requests come at random, at `load` of what all seats can do, each to one of `clients` front ends, and stay for two
    seconds on average, of which six are simulated and the second half counts. A client knows every replica's counts as
    they were at the last report; each request of its own it counts as `clients` that wait, as vLLM's does (it guesses
    that the others do the same). It takes the lowest 4 * waiting + running, looking from its own place on.
    """
    rate, now, next_report = load * replicas * seats / 2.0, 0.0, 0.0
    busy: list[list[float]] = [[] for _ in range(replicas)]  # for each seat that was ever taken: until when
    ends: list[tuple[float, int]] = []
    inside, seen = np.zeros(replicas), np.zeros((clients, replicas))
    start = np.arange(clients) * replicas // clients
    late = count = 0
    until = 3.0 + max(3.0, 5000 / rate)
    while (now := now + rng.exponential(1 / rate)) < until:
        while ends and ends[0][0] <= now:
            inside[heapq.heappop(ends)[1]] -= 1
        if now >= next_report:
            seen[:], next_report = np.minimum(inside, seats) + 4 * np.maximum(inside - seats, 0), now + report
        client = int(rng.integers(clients))
        first = int(start[client])
        chosen = (int(np.concatenate((seen[client, first:], seen[client, :first])).argmin()) + first) % replicas
        seen[client, chosen] += 4 * clients
        begins = now if len(busy[chosen]) < seats else max(now, heapq.heappop(busy[chosen]))
        if now > 3.0:
            count, late = count + 1, late + (begins > now and bool((inside < seats).any()))
        heapq.heappush(busy[chosen], end := begins + rng.exponential(2.0))
        heapq.heappush(ends, (end, chosen))
        inside[chosen] += 1
    return late / max(count, 1)
