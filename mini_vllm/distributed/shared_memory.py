"""Memory that several processes share, and waiting for each other through it without a system call.

The memory has no name: the process that makes it holds a file descriptor of it, and hands that to the processes that it
starts. So nothing can be left behind, whoever is killed: the last one that goes takes the memory along. (Upstream's
blocks have names in /dev/shm and must be unlinked.)

Upstream's CPU build waits and adds up in C++ (upstream/csrc/cpu/shm.cpp), and its message queue spins before it sleeps,
as we do: upstream/vllm/distributed/device_communicators/shm_broadcast.py:97 — `SpinCondition`.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array

SPINS = 3000
"""Looks at a counter before the processor is offered to others: about 0.2 ms."""
PATIENCE_S = 0.05
"""Whoever has waited so long sleeps between two looks: the others are not just behind, they are busy or stopped."""
_NAP_S = 5e-4
_LINE = 8  # words in a cache line: counters that different processes write must not share one


def is_supported() -> bool:
    """x86-64 shows the stores of one core to the others in their order, which `Counters` need; Linux has the rest."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SharedMemory:
    """Zeros that this process shares with those it starts: hand it to them as an argument of `Process`.

    A page takes memory once somebody has written to it.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = max(num_bytes, 1)
        fd = os.memfd_create("mini_vllm") if hasattr(os, "memfd_create") else _file_without_name()
        os.ftruncate(fd, self.num_bytes)
        self._open(fd)

    def _open(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        self.map = mmap.mmap(fd, self.num_bytes)

    def __reduce__(self) -> Any:
        return _attach, (reduction.DupFd(self._fd), self.num_bytes)

    def fileno(self) -> int:
        """The file descriptor, for processes that were not started from here."""
        return self._fd

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """The beginning of it as an array."""
        return np.frombuffer(self.map, dtype=dtype, count=int(np.prod(shape))).reshape(shape)


def _attach(handle: Any, num_bytes: int) -> SharedMemory:
    return attach(handle.detach(), num_bytes)


def attach(fd: int, num_bytes: int) -> SharedMemory:
    """Memory that another process made and whose file descriptor is here, as of a program started with `pass_fds`. The
    descriptor is the memory's from now on."""
    memory = SharedMemory.__new__(SharedMemory)
    memory.num_bytes = num_bytes
    memory._open(fd)
    return memory


def _file_without_name() -> int:
    """For systems without `memfd_create`: a file that is unlinked before anybody could see it."""
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    return fd


class Counters:
    """Whole numbers that only grow, each written by one process and read by all.

    Args:
        count: how many.
        num_processes: that run at the same time. Where they are more than the cores, nobody spins.
    """

    is_shared = True

    def __init__(self, count: int, num_processes: int) -> None:
        self.num_processes = num_processes
        self._open(SharedMemory(count * _LINE * 8))

    def _open(self, memory: SharedMemory) -> None:
        self._memory, self._words = memory, memoryview(memory.map).cast("q")
        self.spins = SPINS if num_cores() >= self.num_processes else 0

    def __getstate__(self) -> Any:
        return self.num_processes, self._memory

    def __setstate__(self, state: Any) -> None:
        self.num_processes, memory = state
        self._open(memory)

    def __getitem__(self, index: int) -> int:
        return self._words[index * _LINE]

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index * _LINE] = value

    def wait(self, index: int, value: int, check: Callable[[], object]) -> None:
        """Return when a counter has reached `value`. `check` is called now and then and may raise."""
        words, at = self._words, index * _LINE
        for _ in range(self.spins):
            if words[at] >= value:
                return
        start = time.monotonic()
        while words[at] < value:
            check()
            if time.monotonic() > start + PATIENCE_S:
                time.sleep(_NAP_S)
                continue
            for _ in range(10):
                os.sched_yield()
