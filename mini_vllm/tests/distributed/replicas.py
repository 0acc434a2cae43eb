"""Ranks of several replicas for tests: processes that are forked, each with its rank of one `DataParallelGroup`."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.platforms.cpu.threads import one_blas_thread, unshared
from mini_vllm.tests.distributed.ranks import PATIENCE_S

Task = Callable[[DataParallelGroup, TensorParallelGroup | None], Any]


def run_replicas(
    task: Task, dp_size: int = 2, tp_size: int = 1, *, num_bytes: int = 1 << 20, num_elements: int = 1 << 16,
    timeout: float = PATIENCE_S, silent: tuple[int, ...] = (), start_others: bool = False,
) -> list[Any]:  # fmt: skip
    """`task(group, ranks of tensor parallelism or None)` on every rank; what each returned, or the text of its error.

    start_others: the task starts the ranks of a replica beside the first, which alone are processes of ours then.
    Ranks that are `silent` are not asked: None stands for them.

    Raises:
        AssertionError: a rank ended without an answer.
    """
    group = DataParallelGroup(dp_size, tp_size, num_bytes, timeout)
    of_replicas = [
        TensorParallelGroup(tp_size, num_elements, np.float64) if tp_size > 1 and not start_others else None
        for _ in range(dp_size)
    ]
    context = multiprocessing.get_context("fork")
    workers, pipes, found = [], [], []
    for rank in range(0, group.world_size, tp_size if start_others else 1):
        ours, theirs = context.Pipe()
        args = (task, group, of_replicas[rank // tp_size], rank, theirs)
        workers.append(context.Process(target=_work, args=args))
        workers[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        for rank, pipe in enumerate(pipes):
            if rank in silent:
                found.append(None)
                continue
            assert pipe.poll(PATIENCE_S), f"rank {rank} has not answered"
            found.append(pipe.recv())
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return found


def _work(task: Task, group: DataParallelGroup, tp: TensorParallelGroup | None, rank: int, pipe: Any) -> None:
    parent = os.getppid()

    def alive() -> None:
        if os.getppid() != parent:
            os._exit(0)

    dp_rank, tp_rank = divmod(rank, group.tp_size)
    if tp is not None:
        tp.rank, tp.check = tp_rank, alive
    group.of_replica(dp_rank).join(tp_rank, alive)
    try:
        with one_blas_thread(), unshared(), np.errstate(all="ignore"):
            pipe.send(task(group, tp))
    except Exception:
        pipe.send(traceback.format_exc())
