"""Lab 11-04: a few slots, many adapters: who gets one, who keeps one, and who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Stats:
    """hits: it had a slot. misses: it had none. evictions: another one lost its slot for it."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0


class AdapterSlotCache:
    """Which adapters are in the slots of a GPU. Where one has to go, it is the one that was used least recently, of
    those that nobody has pinned.

    Attributes:
        stats: counts since the start.
    """

    def __init__(self, max_loras: int) -> None:
        """Empty slots.

        Raises:
            ValueError: "max_loras must be at least 1, got 0".
        """
        raise NotImplementedError("slots with nobody in them")

    def ensure(self, adapter_id: int) -> str:
        """The adapter has a slot, and counts as used.

        Returns:
            "hit", "load" (a slot was free) or "evict+load".

        Raises:
            RuntimeError: "no slot for adapter 5: all 2 are pinned". Then nothing has changed, the counts neither.
        """
        raise NotImplementedError("hit, load or evict+load: the adapter has a slot now")

    def pin(self, adapter_id: int) -> None:
        """Whatever comes, it keeps its slot. Pinning is no use: its age stays as it is.

        Raises:
            ValueError: "adapter 5 has no slot".
        """
        raise NotImplementedError("the adapter keeps its slot, whatever comes")

    def resident(self) -> list[int]:
        """The adapters with a slot, from the one that was used least recently to the last."""
        raise NotImplementedError("the adapters with a slot, least recently used first")


def max_schedulable(
    requests: Sequence[int | None], max_loras: int, running: Sequence[int | None] = ()
) -> tuple[list[int], list[int]]:
    """What vLLM does: which waiting requests a step admits, in the order of the queue.

    A request is passed over exactly if its adapter would be one more than there are slots, counting those of the
    running requests and of the admitted ones before it. Nobody behind it waits for that reason.

    Args:
        requests: the adapters of the queue, None: the base. running: of those that run already.

    Returns:
        Places of the admitted and of the deferred, both ascending.
    """
    raise NotImplementedError("the places of the admitted, and those of the deferred")


class FairGate:
    """A gate under which no adapter waits for ever. Args: max_loras, and `patience`, in steps.

    As long as nobody in the queue has waited longer than `patience`, it does what `max_schedulable` does, up to the
    free seats. Otherwise it may hold back whom it likes, with these ends: a base request is never held back while
    there is a seat; and where requests run for at most `longest` steps and a few adapters compete for a slot, each of
    them is admitted within `patience + 2 * longest` steps. The price is seats: over a long run of two busy adapters and
    some rare ones at least 85 % as many requests finish as without fairness. How is yours to decide.
    """

    def __init__(self, max_loras: int, patience: int) -> None:
        """Nobody has waited yet."""
        raise NotImplementedError("a gate for which nobody has waited yet")

    def admit(self, waiting: Sequence[tuple[int | None, int]], running: Sequence[int | None], room: int) -> list[int]:
        """Places of the queue that this step admits, ascending: at most `room`, and with the running ones of at most
        `max_loras` different adapters.

        Args:
            waiting: the queue, oldest first: (adapter, steps that it has waited). running: adapters of the running
                requests. None: the base.
        """
        raise NotImplementedError("the places of the queue that this step admits")
