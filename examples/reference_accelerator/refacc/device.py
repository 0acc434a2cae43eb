"""The device: memory that fills up, products that are counted, and a record of each step.

Its memory is the host's, and its arithmetic is numpy's. What is real is the interface: nothing is computed on it that
was not put there first, and each operation says what it reads and how much it computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
KINDS = ("embedding", "projections", "logits", "attention", "elementwise")


@dataclass
class Counts:
    """What operations of one kind did in one step.

    Attributes:
        flops: operations on numbers: a multiplication and an addition are two, an exponential is one.
        weight_bytes, kv_read, kv_written: bytes of the device's memory that were read or written.
    """

    flops: int = 0
    weight_bytes: int = 0
    kv_read: int = 0
    kv_written: int = 0


@dataclass
class Step:
    """A step of the engine.

    Attributes:
        kinds: one of `KINDS` -> what its operations did.
        query_lens, seq_lens: of each request, the tokens computed and those whose keys are then in the cache.
        sampled: rows of logits. to_device, to_host: bytes that crossed the bus.
    """

    kinds: defaultdict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    query_lens: list[int] = field(default_factory=list)
    seq_lens: list[int] = field(default_factory=list)
    sampled: int = 0
    to_device: int = 0
    to_host: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum(self.query_lens)

    def total(self, name: str) -> int:
        """The sum of a field of `Counts` over all kinds."""
        return sum(getattr(counts, name) for counts in self.kinds.values())


class Device:
    """Args:
        total: bytes of memory. number: which device it is, as its rank.

    Attributes:
        live, peak: bytes taken now, and at most so far. setup: what crossed the bus before the first step.
        steps: the record. program: what computes the model, once that is there.
    """

    def __init__(self, total: int, number: int = 0) -> None:
        self.total, self.number = total, number
        self.live = self.peak = 0
        self.setup, self.steps = Step(), list[Step]()
        self.program: Any = None
        self._now = self.setup

    def take(self, nbytes: int, what: str) -> None:
        """Memory for something. Raises ValueError where it does not fit."""
        if self.live + nbytes > self.total:
            raise ValueError(
                f"refacc:{self.number} has {self.total:,} bytes, of which {self.live:,} are taken: {what} needs "
                f"{nbytes:,} more. REFACC_GIB says how much memory a device has"
            )
        self.live += nbytes
        self.peak = max(self.peak, self.live)

    def give_back(self) -> None:
        """All memory, and the program."""
        self.live, self.program = 0, None

    @contextmanager
    def step(self) -> Iterator[Step]:
        """What happens inside belongs to one step. One in which nothing was computed leaves no record."""
        self._now = step = Step()
        try:
            yield step
        finally:
            self._now = self.setup
            if step.num_tokens:
                self.steps.append(step)

    def shape(self, query_lens: Array, seq_lens: Array) -> None:
        """The requests of this step, [R] each."""
        self._now.query_lens, self._now.seq_lens = query_lens.tolist(), seq_lens.tolist()

    def weight(self, array: Array, what: str) -> Array:
        """A weight that stays: copied over the bus, into memory."""
        held = np.array(array, np.float64)
        self.take(held.nbytes, what)
        self._now.to_device += held.nbytes
        return held

    def upload(self, array: Array) -> Array:
        """An input of this step, over the bus."""
        self._now.to_device += array.nbytes
        return array

    def download(self, logits: Array) -> Array:
        """Logits [R, V], over the bus."""
        self._now.to_host += logits.nbytes
        self._now.sampled += len(logits)
        return logits

    def rows(self, rows: Array) -> Array:
        """Rows of the embedding that have been looked up, [T, H]."""
        self._now.kinds["embedding"].weight_bytes += rows.nbytes
        return rows

    def linear(self, kind: str, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """`x @ weight.T + bias`: x [T, in], weight [out, in]. The weight is read once, whatever T is."""
        counts = self._now.kinds[kind]
        counts.flops += 2 * len(x) * weight.size
        counts.weight_bytes += weight.nbytes
        y: Array = x @ weight.T
        if bias is not None:
            counts.flops += y.size
            counts.weight_bytes += bias.nbytes
            y += bias
        return y

    def matmul(self, a: Array, b: Array) -> Array:
        """Products of attention: [..., m, k] @ [..., k, n]."""
        out: Array = a @ b
        self._now.kinds["attention"].flops += 2 * out.size * a.shape[-1]
        return out

    def elementwise(self, ops: int, out: Array, weight: Array | None = None) -> Array:
        """Note that each number of `out` took so many operations, and which weight was read for it."""
        counts = self._now.kinds["elementwise"]
        counts.flops += ops * out.size
        counts.weight_bytes += 0 if weight is None else weight.nbytes
        return out

    def kv(self, read: int = 0, written: int = 0) -> None:
        """Bytes of keys and values."""
        counts = self._now.kinds["attention"]
        counts.kv_read += read
        counts.kv_written += written


_current: list[Device] = []


def current_device() -> Device:
    """The device that this process computes on. Raises RuntimeError where no worker has made one."""
    if not _current:
        raise RuntimeError("this process has no refacc device: RefAccWorker.init_device makes it")
    return _current[-1]


def set_device(device: Device) -> None:
    """Compute on this one from now on."""
    _current[:] = [device]


@contextmanager
def use(device: Device) -> Iterator[None]:
    """Compute on this one inside: a process may hold two engines."""
    _current.append(device)
    try:
        yield
    finally:
        _current.pop()
