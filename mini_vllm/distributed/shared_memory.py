"""Memory that forked processes share, and waiting for each other through it without a system call.

Upstream's CPU build does both in C++ (upstream/csrc/cpu/shm.cpp), and its message queue spins before it sleeps, as we
do: upstream/vllm/distributed/device_communicators/shm_broadcast.py:97 — `SpinCondition`.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array

SPINS = 3000
"""Looks at a counter before the processor is offered to others: about 0.2 ms."""
_LINE = 8  # words in a cache line: counters that different processes write must not share one


def is_supported() -> bool:
    """Linux forks safely; x86-64 shows the stores of one core to the others in their order, which `Counters` need."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def shared_zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros that processes forked from now on share."""
    count = int(np.prod(shape))
    memory = mmap.mmap(-1, max(count * np.dtype(dtype).itemsize, 1))
    return np.frombuffer(memory, dtype=dtype, count=count).reshape(shape)


class Counters:
    """Whole numbers that only grow, each written by one process and read by all."""

    def __init__(self, count: int) -> None:
        self._words = memoryview(mmap.mmap(-1, count * _LINE * 8)).cast("q")

    def __getitem__(self, index: int) -> int:
        return self._words[index * _LINE]

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index * _LINE] = value

    def wait(self, index: int, value: int, check: Callable[[], object]) -> None:
        """Return when a counter has reached `value`. `check` is called now and then and may raise."""
        words, at = self._words, index * _LINE
        for _ in range(SPINS):
            if words[at] >= value:
                return
        while words[at] < value:
            check()
            for _ in range(10):
                os.sched_yield()
