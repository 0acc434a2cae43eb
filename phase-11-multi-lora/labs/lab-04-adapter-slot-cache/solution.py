"""Lab 11-04: a few slots, many adapters: who gets one, who keeps one, and who waits."""

from __future__ import annotations

from collections import OrderedDict
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
        if max_loras < 1:
            raise ValueError(f"max_loras must be at least 1, got {max_loras}")
        self.max_loras = max_loras
        self.stats = Stats()
        self._slots: OrderedDict[int, bool] = OrderedDict()  # adapter -> pinned, least recently used first

    def ensure(self, adapter_id: int) -> str:
        """The adapter has a slot, and counts as used.

        Returns:
            "hit", "load" (a slot was free) or "evict+load".

        Raises:
            RuntimeError: "no slot for adapter 5: all 2 are pinned". Then nothing has changed, the counts neither.
        """
        if adapter_id in self._slots:
            self._slots.move_to_end(adapter_id)
            self.stats.hits += 1
            return "hit"
        full = len(self._slots) == self.max_loras
        if full:
            victim = next((each for each, pinned in self._slots.items() if not pinned), None)
            if victim is None:
                raise RuntimeError(f"no slot for adapter {adapter_id}: all {self.max_loras} are pinned")
            del self._slots[victim]
            self.stats.evictions += 1
        self._slots[adapter_id] = False
        self.stats.misses += 1
        return "evict+load" if full else "load"

    def pin(self, adapter_id: int) -> None:
        """Whatever comes, it keeps its slot. Pinning is no use: its age stays as it is.

        Raises:
            ValueError: "adapter 5 has no slot".
        """
        if adapter_id not in self._slots:
            raise ValueError(f"adapter {adapter_id} has no slot")
        self._slots[adapter_id] = True

    def resident(self) -> list[int]:
        """The adapters with a slot, from the one that was used least recently to the last."""
        return list(self._slots)


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
    active = set(running) - {None}
    admitted: list[int] = []
    deferred: list[int] = []
    for place, adapter in enumerate(requests):
        if adapter is None or adapter in active or len(active) < max_loras:
            admitted.append(place)
            active |= {adapter} - {None}
        else:
            deferred.append(place)
    return admitted, deferred


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
        self.max_loras, self.patience = max_loras, patience

    def admit(self, waiting: Sequence[tuple[int | None, int]], running: Sequence[int | None], room: int) -> list[int]:
        """Places of the queue that this step admits, ascending: at most `room`, and with the running ones of at most
        `max_loras` different adapters.

        Args:
            waiting: the queue, oldest first: (adapter, steps that it has waited). running: adapters of the running
                requests. None: the base.
        """
        active = set(running) - {None}
        overdue = [adapter for adapter, waited in waiting if waited > self.patience]
        wanted = [each for each in dict.fromkeys(overdue) if each is not None and each not in active]
        missing = len(wanted) - (self.max_loras - len(active))
        by_load = sorted(active, key=lambda adapter: (running.count(adapter), adapter))
        draining = set(by_load[: max(0, missing)])
        reserved = set(wanted[: self.max_loras])
        chosen: list[int] = []
        for place, (adapter, _) in enumerate(waiting):
            if len(chosen) == room:
                break
            if adapter is not None and adapter not in active:
                promised = 0 if adapter in reserved else len(reserved - active)
                if len(active) + promised >= self.max_loras:
                    continue
            if adapter in draining:
                continue
            chosen.append(place)
            active |= {adapter} - {None}
        return chosen
