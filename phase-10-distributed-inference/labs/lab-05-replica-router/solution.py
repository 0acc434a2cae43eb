"""Lab 10-05: four engines with the same weights and different caches: who gets the next prompt?

A router hears (waiting, running) of each replica now and then; between two reports it knows what it has sent itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def predicted_ratio() -> float:
    """Your prediction, before any code runs. `sim.workload(1.5)`: 12 tenants with a common prefix of 512 tokens each,
    and the largest sends nearly half of all requests. `Sticky` sends a prefix always to the same replica, `LeastLoaded`
    looks at the queues alone.

    Returns:
        Mean ticks to the first token with `Sticky`, over those with `LeastLoaded`; below 1 if `Sticky` is the quicker
        one. Right is what is at most twice as much as the simulation says, and at least half.
    """
    return 30.0


class RoundRobin:
    """Replicas in turns, from replica 0 on, whatever the prompts and the counts."""

    def __init__(self, num_replicas: int) -> None:
        """It begins with replica 0.

        Raises:
            ValueError: "num_replicas must be at least 1, got 0".
        """
        self.num_replicas, self._next = _at_least_one(num_replicas), 0

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """(waiting, running) of each replica, as they were when the report was made.

        Raises:
            ValueError: "update: 3 counts for 4 replicas".
        """
        _check(counts, self.num_replicas)

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        chosen, self._next = self._next, (self._next + 1) % self.num_replicas
        return chosen


class LeastLoaded:
    """What the pinned release does.

    The lowest score wins; a waiting request weighs as much as four running ones. Of equals the first wins, counting
    from replica `num_replicas * client_index // client_count` on, round the circle: several clients route side by side,
    each by itself, and start at different places. Until the next report a client counts each of its own choices as
    `client_count` more waiting there, one for each client that will have thought the same. Before the first report
    nobody waits or runs. `update` replaces all that, and what it gets stays the caller's.

    Upstream: upstream/vllm/v1/engine/core_client.py:1382 — `DPLBAsyncMPClient.get_core_engine_for_request`.
    """

    def __init__(self, num_replicas: int, client_index: int = 0, client_count: int = 1) -> None:
        """Nobody waits yet, as far as it knows.

        Raises:
            ValueError: "num_replicas must be at least 1, got 0"; "client_index 2 must be from 0 to below client_count
                2".
        """
        self.num_replicas = _at_least_one(num_replicas)
        if not 0 <= client_index < client_count:
            raise ValueError(f"client_index {client_index} must be from 0 to below client_count {client_count}")
        self._client_count, self._start = client_count, num_replicas * client_index // client_count
        self._counts = [[0, 0] for _ in range(num_replicas)]

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """As `RoundRobin.update`."""
        _check(counts, self.num_replicas)
        self._counts = [list(pair) for pair in counts]

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        order = [(self._start + i) % self.num_replicas for i in range(self.num_replicas)]
        chosen = min(order, key=self._score)
        self._sent(chosen)
        return chosen

    def _sent(self, replica: int) -> None:
        self._counts[replica][0] += self._client_count

    def _score(self, replica: int) -> int:
        waiting, running = self._counts[replica]
        return 4 * waiting + running


class Sticky:
    """A prefix always goes to the same replica, its home, whatever the counts.

    A prompt's prefix is its first `block_size` tokens (a shorter prompt's: all of it). Homes are handed out in turns,
    from replica 0 on, as prefixes are first seen.
    """

    def __init__(self, num_replicas: int, block_size: int = 16) -> None:
        """Nobody has a home yet.

        Raises:
            ValueError: as `RoundRobin`.
        """
        self.num_replicas, self._block_size = _at_least_one(num_replicas), block_size
        self._homes: dict[tuple[int, ...], int] = {}

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """As `RoundRobin.update`."""
        _check(counts, self.num_replicas)

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        prefix = tuple(prompt_token_ids[: self._block_size])
        return self._homes.setdefault(prefix, len(self._homes) % self.num_replicas)


class PrefixAware:
    """Prompts go where their prefix is likely to be cached, but not at any price. How is yours to decide; what it has
    to reach is measured (README, "What to implement").

    `len(router)`: how many prefixes or blocks it remembers, over all replicas, never more than `max_entries`: what
    was seen last stays. New prefixes that come between two reports do not all go to the same one of equal replicas.
    """

    def __init__(self, num_replicas: int, block_size: int = 16, max_entries: int = 4096) -> None:
        """It remembers nothing yet.

        Raises:
            ValueError: as `RoundRobin`.
        """
        self.num_replicas, self._block_size = _at_least_one(num_replicas), block_size
        self._load, self._max_entries = LeastLoaded(num_replicas), max_entries
        self._seen: OrderedDict[tuple[int, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """As `RoundRobin.update`."""
        self._load.update(counts)

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        keys, above = [], 0
        for start in range(0, len(prompt_token_ids) - self._block_size + 1, self._block_size):
            above = hash((above, tuple(prompt_token_ids[start : start + self._block_size])))
            keys.append(above)

        def cost(replica: int) -> float:
            hits = next((i for i, key in enumerate(keys) if (replica, key) not in self._seen), len(keys))
            return len(prompt_token_ids) - hits * self._block_size + 64 * self._load._score(replica)

        chosen = min(range(self.num_replicas), key=cost)
        self._load._sent(chosen)
        for key in reversed(keys):
            self._seen[chosen, key] = None
            self._seen.move_to_end((chosen, key))
        while len(self._seen) > self._max_entries:
            self._seen.popitem(last=False)
        return chosen


def _at_least_one(num_replicas: int) -> int:
    if num_replicas < 1:
        raise ValueError(f"num_replicas must be at least 1, got {num_replicas}")
    return num_replicas


def _check(counts: Sequence[Sequence[int]], num_replicas: int) -> None:
    if len(counts) != num_replicas:
        raise ValueError(f"update: {len(counts)} counts for {num_replicas} replicas")
