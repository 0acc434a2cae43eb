"""Lab 10-05: four engines with the same weights and different caches: who gets the next prompt?

A router hears (waiting, running) of each replica now and then; between two reports it knows what it has sent itself.
"""

from __future__ import annotations

from collections.abc import Sequence


def predicted_ratio() -> float:
    """Your prediction, before any code runs. `sim.workload(1.5)`: 12 tenants with a common prefix of 512 tokens each,
    and the largest sends nearly half of all requests. `Sticky` sends a prefix always to the same replica, `LeastLoaded`
    looks at the queues alone.

    Returns:
        Mean ticks to the first token with `Sticky`, over those with `LeastLoaded`; below 1 if `Sticky` is the quicker
        one. Right is what is at most twice as much as the simulation says, and at least half.
    """
    raise NotImplementedError("how many times as long to the first token")


class RoundRobin:
    """Replicas in turns, from replica 0 on, whatever the prompts and the counts."""

    def __init__(self, num_replicas: int) -> None:
        """It begins with replica 0.

        Raises:
            ValueError: "num_replicas must be at least 1, got 0".
        """
        raise NotImplementedError("a router that takes turns")

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """(waiting, running) of each replica, as they were when the report was made.

        Raises:
            ValueError: "update: 3 counts for 4 replicas".
        """
        raise NotImplementedError("the counts are heard, and checked")

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        raise NotImplementedError("the replica whose turn it is")


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
        raise NotImplementedError("a router for which nobody waits yet")

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """As `RoundRobin.update`."""
        raise NotImplementedError("the loads are those of this report")

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        raise NotImplementedError("the replica that the pinned release chooses")


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
        raise NotImplementedError("a router without any homes yet")

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """As `RoundRobin.update`."""
        raise NotImplementedError("the counts are heard, and checked")

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        raise NotImplementedError("the home of the prompt's prefix")


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
        raise NotImplementedError("a router that remembers nothing yet")

    def __len__(self) -> int:
        raise NotImplementedError("how many prefixes or blocks are remembered")

    def update(self, counts: Sequence[Sequence[int]]) -> None:
        """As `RoundRobin.update`."""
        raise NotImplementedError("the loads are those of this report")

    def route(self, prompt_token_ids: Sequence[int]) -> int:
        """The replica, 0 to num_replicas - 1."""
        raise NotImplementedError("the replica that is worth it")
