"""Shared memory has no name, reaches spawned processes, and goes with the last that holds it."""

import gc
import multiprocessing
import os
import threading
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
    child.join(60)
    assert child.exitcode == 0
    assert array.tolist() == [[2, 4], [6, 8]] and (counters[0], counters[1]) == (5, 7)


def test_it_leaves_no_file_and_no_descriptor_behind():
    gc.collect()  # what tests before this one left behind
    before, fds = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    memory = SharedMemory(1 << 20)
    array = memory.array((1 << 17,), np.float64)
    del memory
    gc.collect()
    array[-1] = 1.0  # the array holds the memory
    assert set(os.listdir("/dev/shm")) == before
    del array
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == fds


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
    threading.Timer(1.0, counters.__setitem__, (0, 3)).start()
    before = time.thread_time()
    counters.wait(0, 3, lambda: asked.append(1))
    assert counters[0] == 3 and len(asked) > 10
    assert time.thread_time() - before < 0.5

    def give_up():
        raise TimeoutError("enough")

    with pytest.raises(TimeoutError, match="enough"):
        counters.wait(0, 4, give_up)
