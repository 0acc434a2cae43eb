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
    raise NotImplementedError("the bytes of an adapter that patches these projections")


def slot_bytes(shapes: Shapes, layers: int, max_lora_rank: int, dtype_bytes: int = 2) -> int:
    """Bytes that one slot reserves on the GPU before any adapter is known, so that any may come."""
    raise NotImplementedError("the bytes that a slot reserves for whatever adapter comes")


def step_bytes(base: int, adapters: Mapping[str, int], rows: Sequence[str | None]) -> tuple[int, int]:
    """Weights that one decode step reads, where each row of the batch names its adapter (None: the base).

    Args:
        base: bytes of the base's weights. adapters: bytes of each adapter.

    Returns:
        All rows in one batch of one engine; and where each adapter is merged into a base of its own, on an engine of
        its own, that runs the rows that are its.
    """
    raise NotImplementedError("the bytes of weights of one step: in one batch, and with an engine for each")


def plan(tenants: Sequence[Tenant], machine: Machine) -> list[Engine]:
    """Engines for all tenants, each on a machine of its own, as few as you can.

    Every tenant is served by exactly one engine, and all may be busy at once, with nobody waiting for a slot or for
    memory: `max_loras` is at least the number of the engine's tenants, `max_lora_rank` at least their ranks and in
    RANKS, and the base, the slots and the KV cache of all requests fit into the machine's memory.

    Raises:
        ValueError: "tenant 'x' does not fit on a machine of her own".
    """
    raise NotImplementedError("engines that serve every tenant, as few as you can")
