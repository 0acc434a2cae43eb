"""Ranks in processes of this machine, which share memory with the engine's.

Upstream twin: `vllm/v1/executor/multiproc_executor.py` (`WorkerProcHandle`, and the part of `WorkerProc` that starts).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from mini_vllm.distributed.shared_memory import Counters
from mini_vllm.executor.utils import main_left_alone, one_thread_each
from mini_vllm.executor.worker_proc import NUM_COUNTERS, worker_main

_GOODBYE_S = 2.0


@dataclass
class WorkerProcHandle:
    """A worker as the engine's process sees it.

    Upstream: upstream/vllm/v1/executor/multiproc_executor.py:512 — `WorkerProcHandle`.
    """

    rank: int
    proc: BaseProcess
    connection: Connection

    @property
    def name(self) -> str:
        """Who it is, for messages."""
        return f"rank {self.rank} (pid {self.proc.pid})"

    @property
    def state(self) -> str:
        """The state letter of its process, see `state_of`."""
        return state_of(self.proc.pid)

    def how_it_ended(self) -> str:
        """Its exit code, in words."""
        self.proc.join(1.0)
        code = self.proc.exitcode
        how = f"with exit code {code}"
        if code is not None and code < 0:
            how = f"by signal {-code} ({signal.Signals(-code).name})"
        return f"{how}; the system does that where memory runs out" if code == -signal.SIGKILL else how


class LocalWorkers:
    """The ranks from 1 on. Rank 0 is the engine's process itself.

    Args:
        group: all ranks, as they share memory. dp_group: those of all replicas, where these hand each other rows.

    Attributes:
        workers: by rank, after `start`. rpc_broadcast_mq: what all are told. counters: how far each is.
        main_is_there: whether they have imported the engine's script.
    """

    def __init__(self, config: EngineConfig, resolved_model: ResolvedModel, group: Any, dp_group: Any = None) -> None:
        self.config, self.resolved_model, self.group, self.dp_group = config, resolved_model, group, dp_group
        self.world_size = group.world_size
        self.rpc_broadcast_mq: Any = MessageQueue(self.world_size - 1)
        self.counters: Any = Counters(NUM_COUNTERS * self.world_size, self.world_size)
        self.workers: list[Any] = []
        self.main_is_there = True  # unless a worker starts without it

    def start(self) -> None:
        """Start them; each loads its part of the model when it is told to."""
        settings = pickle.dumps((self.config, self.resolved_model))
        self.main_is_there = b"__main__" in settings
        shared = (self.group, self.rpc_broadcast_mq, self.counters, self.dp_group)
        for rank in range(1, self.world_size):
            ours, theirs = multiprocessing.get_context("spawn").Pipe()
            try:
                args = (rank, os.getpid(), settings, shared, theirs)
                proc = start_process(f"mini_vllm rank {rank}", worker_main, args, self.main_is_there)
            finally:
                theirs.close()
            self.workers.append(WorkerProcHandle(rank, proc, ours))

    def end(self, owner: int) -> None:
        """Close the pipes, which ends a worker that waits; kill what has not gone soon after. Nothing in a fork."""
        if os.getpid() == owner:
            for worker in self.workers:
                worker.connection.close()
            end_processes([worker.proc for worker in self.workers])


def start_process(name: str, target: Callable[..., object], args: tuple[Any, ...], main_is_there: bool) -> BaseProcess:
    """A process of one rank: spawned, with a BLAS of one thread; it imports the script only where that is needed."""
    proc = multiprocessing.get_context("spawn").Process(target=target, args=args, daemon=True, name=name)
    with main_left_alone(not main_is_there), one_thread_each():
        proc.start()
    return proc


def end_processes(processes: list[BaseProcess]) -> None:
    """Wait for each a little, and kill it then."""
    for proc in processes:
        if state_of(proc.pid) != "T":
            proc.join(_GOODBYE_S)
        if proc.is_alive():
            proc.kill()
            proc.join()


def state_of(pid: int | None) -> str:
    """The state letter of a process ("T": stopped), "" where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
