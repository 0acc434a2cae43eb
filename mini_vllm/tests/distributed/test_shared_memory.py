"""Shared memory has no name, reaches spawned processes, and goes with the last that holds it."""

import contextlib
import gc
import multiprocessing
import os
import time

import numpy as np
import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.shared_memory import Counters, SharedMemory

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="needs Linux on x86-64")


def double(memory, counters):
    memory.array((4,), np.float64)[:] *= 2
    counters[1] = 7


def test_a_spawned_process_sees_the_same_memory():
    memory, counters = SharedMemory(32), Counters(2, 2)
    array = memory.array((2, 2), np.float64)
    assert not array.any() and counters[1] == 0
    array[:] = [[1, 2], [3, 4]]
    counters[0] = 5
    child = multiprocessing.get_context("spawn").Process(target=double, args=(memory, counters))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert array.tolist() == [[2, 4], [6, 8]] and (counters[0], counters[1]) == (5, 7)


def held():
    """(device, inode) of all that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself, and what other threads close
            stat = os.stat(f"/proc/self/fd/{name}")
            found.add((stat.st_dev, stat.st_ino))
    return found


def test_it_leaves_no_file_and_no_descriptor_behind():
    memory = SharedMemory(1 << 20)
    link, stat = os.readlink(f"/proc/self/fd/{memory.fileno()}"), os.fstat(memory.fileno())
    mine = stat.st_dev, stat.st_ino
    assert link == "/memfd:mini_vllm (deleted)" and mine in held(), "in no folder: this process alone has it"
    array = memory.array((1 << 17,), np.float64)
    del memory
    gc.collect()
    array[-1] = 1.0  # the array holds the memory
    del array
    gc.collect()
    assert mine not in held()


def test_a_file_without_a_name_serves_where_there_is_no_memfd(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(shared_memory.tempfile, "tempdir", str(tmp_path))
    memory = SharedMemory(64)
    memory.array((8,), np.float64)[3] = 2.5
    assert memory.array((8,), np.float64)[3] == 2.5 and not list(tmp_path.iterdir())


def test_whoever_waits_gives_the_core_away_where_there_are_fewer_cores_than_processes(monkeypatch):
    monkeypatch.setattr(shared_memory, "num_cores", lambda: 2)
    assert Counters(1, 2).spins == shared_memory.SPINS and Counters(1, 3).spins == 0


def test_a_long_wait_takes_little_of_a_core_and_asks_now_and_then():
    counters, asked = Counters(1, 1), []

    def ask():
        asked.append(time.thread_time())
        if len(asked) > 100 and time.monotonic() > begun + 0.5:  # it has been sleeping for long
            counters[0] = 3

    begun, before = time.monotonic(), time.thread_time()
    counters.wait(0, 3, ask)
    assert counters[0] == 3 and len(asked) > 10
    assert asked[-1] - before < 0.5 * (time.monotonic() - begun)

    def give_up():
        raise TimeoutError("enough")

    with pytest.raises(TimeoutError, match="enough"):
        counters.wait(0, 4, give_up)
