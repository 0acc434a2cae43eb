"""Lab 11-03: what an adapter costs, what a slot costs, and how many engines a hundred tenants need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Shapes = Mapping[str, tuple[int, int]]
"""The projections of one layer: name -> (outputs, inputs)."""


@dataclass(frozen=True)
class Tenant:
    """Somebody with an adapter. rank: its. requests: how many of hers run at once when she is busy."""

    name: str
    rank: int
    requests: int


@dataclass(frozen=True)
class Machine:
    """One GPU with one engine. memory: bytes for all that follows. base: of the base's weights. kv_per_request: of the
    KV cache of a running request. shapes, layers: of the model. dtype_bytes: of a number in a slot."""

    memory: int
    base: int
    kv_per_request: int
    shapes: Shapes
    layers: int
    dtype_bytes: int = 2


@dataclass(frozen=True)
class Engine:
    """How one engine is started, and whom it serves. tenants: their names."""

    max_loras: int
    max_lora_rank: int
    tenants: tuple[str, ...]


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `max_lora_rank` may be."""


def adapter_bytes(shapes: Shapes, layers: int, rank: int, targets: Collection[str], dtype_bytes: int = 2) -> int:
    """Bytes of an adapter's weights: it patches the projections named in `targets`, in every layer.

    Raises:
        ValueError: "no projection is called 'qkv'; there are k, o, q, v".
    """
    unknown = sorted(set(targets) - set(shapes))
    if unknown:
        raise ValueError(f"no projection is called {unknown[0]!r}; there are {', '.join(sorted(shapes))}")
    return layers * rank * dtype_bytes * sum(sum(shapes[name]) for name in set(targets))


def slot_bytes(shapes: Shapes, layers: int, max_lora_rank: int, dtype_bytes: int = 2) -> int:
    """Bytes that one slot reserves on the GPU before any adapter is known, so that any may come."""
    return adapter_bytes(shapes, layers, max_lora_rank, shapes, dtype_bytes)


def step_bytes(base: int, adapters: Mapping[str, int], rows: Sequence[str | None]) -> tuple[int, int]:
    """Weights that one decode step reads, where each row of the batch names its adapter (None: the base).

    Args:
        base: bytes of the base's weights. adapters: bytes of each adapter.

    Returns:
        All rows in one batch of one engine; and where each adapter is merged into a base of its own, on an engine of
        its own, that runs the rows that are its.
    """
    names = set(rows)
    return (base if names else 0) + sum(adapters[each] for each in names if each is not None), base * len(names)


def plan(tenants: Sequence[Tenant], machine: Machine) -> list[Engine]:
    """Engines for all tenants, each on a machine of its own, as few as you can.

    Every tenant is served by exactly one engine, and all may be busy at once, with nobody waiting for a slot or for
    memory: `max_loras` is at least the number of the engine's tenants, `max_lora_rank` at least their ranks and in
    RANKS, and the base, the slots and the KV cache of all requests fit into the machine's memory.

    Raises:
        ValueError: "tenant 'x' does not fit on a machine of her own".
    """
    best: list[Engine] | None = None
    for order in _orders(tenants):
        found = _pack(order, machine)
        if best is None or len(found) < len(best):
            best = found
    return best or []


def _orders(tenants: Sequence[Tenant]) -> list[list[Tenant]]:
    by_rank = sorted(tenants, key=lambda each: (-_allowed(each.rank), -each.requests))
    return [by_rank, sorted(tenants, key=lambda each: (-each.requests, -each.rank))]


def _allowed(rank: int) -> int:
    return next((each for each in RANKS if each >= rank), rank)


def _pack(tenants: Sequence[Tenant], machine: Machine) -> list[Engine]:
    """Each into the engine where it costs least memory, the high ranks first; a new one where it fits nowhere."""
    groups: list[list[Tenant]] = []
    for each in tenants:
        fitting = [group for group in groups if _bytes([*group, each], machine) <= machine.memory]
        if fitting:
            min(fitting, key=lambda group: _bytes([*group, each], machine) - _bytes(group, machine)).append(each)
        elif _bytes([each], machine) <= machine.memory and each.rank <= RANKS[-1]:
            groups.append([each])
        else:
            raise ValueError(f"tenant {each.name!r} does not fit on a machine of her own")
    return [
        Engine(len(group), max(_allowed(each.rank) for each in group), tuple(each.name for each in group))
        for group in groups
    ]


def _bytes(group: Sequence[Tenant], machine: Machine) -> int:
    rank = max(_allowed(each.rank) for each in group)
    slot = slot_bytes(machine.shapes, machine.layers, rank, machine.dtype_bytes)
    return machine.base + len(group) * slot + sum(each.requests for each in group) * machine.kv_per_request
