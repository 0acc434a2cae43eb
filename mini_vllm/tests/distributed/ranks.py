"""Ranks of tensor parallelism for tests: processes that are forked, each with its own model and its own rank."""

from __future__ import annotations

import copy
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.platforms.cpu.threads import one_blas_thread, unshared

PATIENCE_S = 120


def run_ranks(world_size: int, num_elements: int, task: Callable[[Any], Any], dtype: Any = "float64") -> list[Any]:
    """`task(group)` on every rank; what each returned.

    Raises:
        AssertionError: a rank failed; its traceback is in the message.
    """
    group = TensorParallelGroup(world_size, num_elements, np.dtype(dtype))
    context = multiprocessing.get_context("fork")
    deadline = time.monotonic() + PATIENCE_S
    workers, pipes = [], []
    for rank in range(1, world_size):
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(rank, group, task, theirs, os.getpid()), daemon=True)
        worker.start()
        theirs.close()
        workers.append(worker)
        pipes.append(ours)
    mine = copy.copy(group)
    mine.check = lambda: _look(workers, deadline)
    try:
        try:
            results = [task_on(mine, task)]
        except ChildProcessError:
            results = []
        except BaseException as problem:
            raise AssertionError(f"rank 0: {type(problem).__name__}: {problem}") from problem
        for pipe in pipes:
            assert pipe.poll(max(0.0, deadline - time.monotonic())), "a rank has not answered"
            result, error = pipe.recv()
            assert not error, error
            results.append(result)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    assert len(results) == world_size, "a rank ended early"
    return results


def task_on(group: Any, task: Callable[[Any], Any]) -> Any:
    with one_blas_thread(), unshared(), np.errstate(all="ignore"):
        return task(group)


def _look(workers: list[Any], deadline: float) -> None:
    if any(not worker.is_alive() for worker in workers):
        raise ChildProcessError("a rank ended")
    assert time.monotonic() < deadline, "the ranks wait for each other"


def _work(rank: int, group: Any, task: Callable[[Any], Any], pipe: Any, parent: int) -> None:
    group.rank = rank
    group.check = lambda: None if os.getppid() == parent else os._exit(0)
    try:
        pipe.send((task_on(group, task), ""))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
