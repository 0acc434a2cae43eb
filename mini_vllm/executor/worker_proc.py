"""A worker's process: take a call from the queue, run it, answer if asked; until the engine's process is gone.

Upstream twin: `vllm/v1/executor/multiproc_executor.py` (`WorkerProc`).
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

DONE, FAILED, LOADED = 0, 1, 2
"""Counters of a rank: calls that it has finished, calls up to the last one that failed there, tensors loaded."""
NUM_COUNTERS = 3
OK, FAILURE, BROKEN_OFF, PROGRESS = 0, 1, 2, 3
"""What an answer says. The last is none: a counter, where ranks do not share them, and its value."""


class BrokenOff(Exception):
    """Another rank has failed in this call: there is nothing to wait for."""


def worker_main(rank: int, parent: int, settings: bytes, shared: tuple[Any, ...], connection: Connection) -> NoReturn:
    """Entry of a worker's process.

    Args:
        parent: pid of the engine's process. settings: pickled engine arguments and `ModelConfig`.
        shared: group, queue, counters and, of replicas that hand each other rows, their ranks.

    Upstream: upstream/vllm/v1/executor/multiproc_executor.py:792 — `WorkerProc.worker_main`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the engine decides
    code = 0
    try:
        WorkerProc(rank, parent, shared, connection).run(settings)
    except (EOFError, OSError):  # the engine has closed the pipe
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # nothing here has to be cleaned up, and no thread may delay it


class WorkerProc:
    """Upstream: upstream/vllm/v1/executor/multiproc_executor.py:539 — `WorkerProc`."""

    def __init__(self, rank: int, parent: int, shared: tuple[Any, ...], connection: Connection) -> None:
        self.rank, self.parent, self.connection = rank, parent, connection
        self.group, self.queue, self.counters, self.dp_group = shared
        self.group.rank, self.group.check = rank, self._check
        self.number = 0
        self.worker: Any = None

    def run(self, settings: bytes) -> None:
        """Load the model, then serve calls for ever."""
        from mini_vllm.platforms.cpu.threads import one_blas_thread, unshared

        with one_blas_thread(), unshared():
            self._call(0, partial(self._load, settings), True)
            while True:
                self.number, call, reply = self.queue.dequeue(self.rank - 1, self.connection, self._check_parent)
                self.group.begin_step(self.number)
                self._call(self.number, partial(self._run, call), reply)

    def _load(self, settings: bytes) -> None:
        from mini_vllm.worker.worker import WorkerParts
        from mini_vllm.worker.worker_base import make_worker

        parts = WorkerParts(dp_group=self.dp_group)
        config, resolved_model = pickle.loads(settings)
        self.worker = make_worker(config, resolved_model, self.group, parts=parts, progress=self._count_tensors)
        self.worker.init_device()
        self.worker.load_model()

    def _count_tensors(self, done: int, total: int) -> None:
        self.counters[self._at(LOADED)] = done
        self._check_parent()

    def _run(self, call: bytes) -> Any:
        """Read a call and run it. What it names may be unknown here: the call fails, the worker lives."""
        try:
            method, args, kwargs = pickle.loads(call)
        except Exception as error:
            raise pickle.UnpicklingError(
                f"this worker cannot read the call ({type(error).__name__}: {error}): put what it names into a module "
                "that workers can import"
            ) from error
        return run_method(self.worker, method, args, kwargs)

    def _call(self, number: int, run: Callable[[], Any], reply: bool | tuple[int, ...]) -> None:
        """Run a call; a failure is always told, and breaks off the call on the other ranks. reply: whether, or which
        ranks answer."""
        answer = None
        if isinstance(reply, tuple):
            reply = self.rank in reply
        try:
            result = run()
            if reply:
                answer = pickle.dumps((number, OK, result))
        except BrokenOff:
            answer = pickle.dumps((number, BROKEN_OFF, None))
        except Exception as error:
            self.counters[self._at(FAILED)] = number + 1
            answer = pickle.dumps((number, FAILURE, (_portable(error), _last_line(error))))
        self.counters[self._at(DONE)] = number + 1
        if answer is not None:
            self.connection.send_bytes(answer)

    def _at(self, counter: int) -> int:
        return NUM_COUNTERS * self.rank + counter

    def _check(self) -> None:
        """Called while this rank waits for another."""
        self._check_parent()
        overlap = self.group.steps_overlap  # then others are at later calls, where a failure does not concern this one
        for rank in range(self.group.world_size):
            failed = self.counters[NUM_COUNTERS * rank + FAILED]
            if rank != self.rank and failed > self.number and (failed == self.number + 1 or not overlap):
                raise BrokenOff

    def _check_parent(self) -> None:
        if os.getppid() != self.parent:
            os._exit(0)


def run_method(worker: Any, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method by its name, or a function with the worker as its first argument.

    Upstream: upstream/vllm/v1/serial_utils.py:486 — `run_method`.
    """
    if isinstance(method, str):
        return getattr(worker, method)(*args, **kwargs)
    return method(worker, *args, **kwargs)


def _portable(error: Exception) -> Exception | None:
    """The error itself, if it survives the way to another process."""
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else None
    except Exception:
        return None


def _last_line(error: Exception) -> str:
    """What went wrong and where, in a line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
