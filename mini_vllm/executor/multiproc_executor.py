"""Each rank in a process of its own: one message to all of them, an answer from the first.

    engine    plan -> queue in shared memory ------------------------ sleep ------------------ tokens
    rank 0          -> update states, compute ==meet== compute ==meet== all logits -> sample -> answer
    rank 1          -> update states, compute ==meet== compute ==meet== all logits -> sample

The engine's process has no rank. While the ranks compute it sleeps, so that it takes no core from them.

Processes are spawned, not forked: each imports what it needs and loads its own part of the weights. The caller's script
is not imported there, unless an argument comes from it; so a script needs no `if __name__ == "__main__"`.

Upstream twin: `vllm/v1/executor/multiproc_executor.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess, current_process
from types import ModuleType
from typing import Any

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from mini_vllm.distributed.parallel_state import TOKENS_BETWEEN_BARRIERS, TensorParallelGroup
from mini_vllm.distributed.shared_memory import Counters
from mini_vllm.executor.abstract import Executor, Method
from mini_vllm.executor.replies import Replies, state_of
from mini_vllm.executor.worker_proc import NUM_COUNTERS, worker_main
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.sample.sampler import Sampler

_START_S = 60.0
_GOODBYE_S = 2.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class WorkerProcHandle:
    """A worker as the engine's process sees it.

    Upstream: upstream/vllm/v1/executor/multiproc_executor.py:513 — `WorkerProcHandle`.
    """

    rank: int
    proc: BaseProcess
    connection: Connection

    @property
    def name(self) -> str:
        """Who it is, for messages."""
        return f"rank {self.rank} (pid {self.proc.pid})"


class MultiprocExecutor(Executor):
    """Attributes:
        workers: the ranks' processes. output_rank: whose answer counts; all ranks sample the same tokens.

    Raises:
        ValueError: a finished model or parts of a learner's, which cannot be in several processes; or the model cannot
            be loaded or shared among so many (raised by a worker, and here again).

    Upstream: upstream/vllm/v1/executor/multiproc_executor.py:102 — `MultiprocExecutor`.
    """

    output_rank = 0

    def _init_executor(self) -> None:
        self._refuse_what_cannot_travel()
        config, hf_config = self.config, self.model_config.hf_config
        assert hf_config is not None
        world_size = config.tensor_parallel_size
        elements = hf_config.hidden_size * TOKENS_BETWEEN_BARRIERS
        self.group = TensorParallelGroup(world_size, elements, config.dtype)
        self.rpc_broadcast_mq = MessageQueue(world_size)
        self.counters = Counters(NUM_COUNTERS * world_size, world_size + 1)
        self.workers: list[WorkerProcHandle] = []
        self._finalizer = weakref.finalize(self, _end_workers, self.workers, os.getpid())
        self._number = 0
        try:
            for rank in range(world_size):
                self.workers.append(self._start_worker(rank))
            self._replies = Replies(self.workers, self.group, self.counters, config.execute_model_timeout_seconds)
            self._replies.expect(0, "load_model")
            self._collect(0, list(range(world_size)), self._patience, True)
        except BaseException:
            self.shutdown()
            raise

    @property
    def _patience(self) -> float:
        """Seconds without progress that are given to what is no step: an interpreter may have to start."""
        return max(self.config.execute_model_timeout_seconds, _START_S)

    def _refuse_what_cannot_travel(self) -> None:
        ranks = f"tensor_parallel_size={self.config.tensor_parallel_size}"
        if getattr(current_process(), "_inheriting", False):
            raise RuntimeError(
                "a worker process of an engine is importing your script, and the script makes an engine: put what the "
                'script does under `if __name__ == "__main__":`. (Workers import it only where an engine argument is '
                "defined in it.)"
            )
        if self.model_config.hf_config is None:
            raise ValueError(f"{ranks} needs a checkpoint folder that every rank can load, got a finished model")
        if type(self.parts.sampler) not in (Sampler, type(None)) or self.parts.attention is not None:
            raise ValueError(f"a sampler or an attention of your own needs tensor_parallel_size=1, got {ranks}")

    def _start_worker(self, rank: int) -> WorkerProcHandle:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        settings = pickle.dumps((self.config, self.model_config))
        shared = (self.group, self.rpc_broadcast_mq, self.counters)
        proc = context.Process(
            target=worker_main, args=(rank, os.getpid(), settings, shared, theirs), daemon=True,
            name=f"mini_vllm rank {rank}",
        )  # fmt: skip
        try:
            with _main_left_alone(b"__main__" not in settings), _one_thread_each():
                proc.start()
        finally:
            theirs.close()
        return WorkerProcHandle(rank, proc, ours)

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Send the plan and do not wait: what goes wrong is told by `sample_tokens`."""
        self._send("execute_model", (scheduler_output,), {}, ())

    def sample_tokens(self) -> ModelRunnerOutput:
        """Wait for the tokens of the step.

        Raises:
            RuntimeError: a rank failed, died or hangs; after the last two, every call raises it again.
        """
        number = self._send("sample_tokens", (), {}, (self.output_rank,))
        output: ModelRunnerOutput
        [output] = self._collect(number, [self.output_rank], self.config.execute_model_timeout_seconds)
        return output

    def collective_rpc(
        self, method: Method, timeout: float | None = None, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """As `Executor.collective_rpc`; a function goes by its name, so it has to be importable, and may take its time."""
        everybody = tuple(range(len(self.workers)))
        if timeout is None and isinstance(method, str):
            timeout = self._patience
        number = self._send(method, args, kwargs or {}, everybody)
        return self._collect(number, list(everybody), timeout)

    def _send(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], replying: tuple[int, ...]) -> int:
        self._replies.raise_if_failed()
        self._number += 1
        name = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
        self._replies.expect(self._number, name)
        message = self._number, method, args, kwargs, replying
        wakers = [worker.connection for worker in self.workers]
        try:
            self.rpc_broadcast_mq.enqueue(message, wakers, self._replies.look)
        except OSError:
            self._replies.look()  # a pipe is closed: it knows whose
            raise
        except BaseException:
            self._replies.forget(self._number)
            raise
        return self._number

    def _collect(self, number: int, ranks: list[int], timeout: float | None, loading: bool = False) -> list[Any]:
        try:
            return self._replies.collect(number, ranks, timeout, loading)
        finally:
            self._replies.forget(number)
            if self._replies.failure:
                self.shutdown()

    @property
    def is_failed(self) -> bool:  # type: ignore[override]
        """True after a worker died or hung."""
        return self._replies.failure is not None

    def check_health(self) -> None:
        """Raises RuntimeError where a worker does not answer within ten seconds, as upstream."""
        self.collective_rpc("check_health", timeout=10.0)

    def shutdown(self) -> None:
        """End the workers; a second call does nothing."""
        if (replies := getattr(self, "_replies", None)) is not None and replies.failure is None:
            replies.failure = "the executor has been shut down: make a new engine"
        self._finalizer()


def _end_workers(workers: list[WorkerProcHandle], owner: int) -> None:
    """Close the pipes, which ends a worker that waits; kill what has not gone soon after."""
    if os.getpid() != owner:  # a fork of the engine's process
        return
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        if state_of(worker.proc.pid) != "T":
            worker.proc.join(_GOODBYE_S)
        if worker.proc.is_alive():
            worker.proc.kill()
            worker.proc.join()


@contextmanager
def _main_left_alone(wanted: bool) -> Iterator[None]:
    """A spawned process imports the script that `__main__` is. While inside, there is none (unless not `wanted`)."""
    main = sys.modules["__main__"]
    if wanted:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside have a BLAS of one thread: the cores go to the ranks.

    Upstream: upstream/vllm/v1/executor/multiproc_executor.py:184 — calls `configure_omp_envs`.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
