"""What the workers answer, and what their silence means.

A worker that dies closes its pipe: that is known at once. One that hangs, or is stopped, makes no progress: it finishes
no call, comes to no barrier, loads no tensor. After a time limit without progress of any rank the one furthest behind is
named, since the others may only be waiting for it.

Upstream twin: `vllm/v1/executor/multiproc_executor.py` (`collective_rpc`, `start_worker_monitor`), where the time runs
from the call on.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Sequence
from typing import Any

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.distributed.shared_memory import Counters
from mini_vllm.executor.worker_proc import BROKEN_OFF, DONE, FAILED, LOADED, NUM_COUNTERS, OK

_GLANCE_S = 2e-4


class Replies:
    """Reads the pipes of all workers.

    Args:
        workers: `WorkerProcHandle`s, by rank.
        limit: seconds without progress after which a step is given up.

    Attributes:
        failure: why the workers are of no use any more, None as long as they are.
    """

    def __init__(self, workers: Sequence[Any], group: TensorParallelGroup, counters: Counters, limit: float) -> None:
        self.workers, self.group, self.counters, self.limit = workers, group, counters, limit
        self.failure: str | None = None
        self._calls: dict[int, str] = {}
        self._found: dict[tuple[int, int], Any] = {}
        self._settled = -1
        self._poll = select.poll()
        self._rank_of: dict[int, int] = {}
        for worker in workers:
            for fd in (worker.connection.fileno(), worker.proc.sentinel):
                self._poll.register(fd, select.POLLIN)
                self._rank_of[fd] = worker.rank

    def expect(self, number: int, name: str) -> None:
        """A call goes out."""
        self._calls[number] = name

    def forget(self, number: int) -> None:
        """Nobody waits for the calls up to this one any more, whatever they still answer."""
        self._settled = max(self._settled, number)
        self._calls = {n: name for n, name in self._calls.items() if n > number}
        self._found = {key: value for key, value in self._found.items() if key[1] > number}

    def raise_if_failed(self) -> None:
        """Raises RuntimeError with the reason."""
        if self.failure is not None:
            raise RuntimeError(self.failure)

    def collect(self, number: int, ranks: list[int], timeout: float | None, loading: bool = False) -> list[Any]:
        """Wait for the answers of these ranks to a call, and until the other ranks are through with it.

        Args:
            timeout: seconds without progress; None: no limit.
            loading: raise a worker's own exception, as if the model had been loaded here.
        """
        start, progress = time.monotonic(), None
        patience = 1.0 if timeout is None else min(1.0, timeout / 4)
        while True:
            answered = all((rank, number) in self._found for rank in ranks)
            if answered and self._all_are_through(number):
                break
            if self._read(_GLANCE_S if answered else patience, loading) or timeout is None:
                continue
            now = self._progress()
            if now != progress:
                start, progress = time.monotonic(), now
            elif time.monotonic() > start + timeout:
                self._give_up(timeout)
        return [self._found.pop((rank, number)) for rank in ranks]

    def _all_are_through(self, number: int) -> bool:
        """True once every rank has finished the call, and none has failed: its answer comes soon."""
        counters, failed = self.counters, False
        for at in range(0, NUM_COUNTERS * len(self.workers), NUM_COUNTERS):
            if counters[at + DONE] <= number:
                os.sched_yield()
                return False
            failed |= counters[at + FAILED] > self._settled + 1
        return not failed

    def look(self) -> None:
        """Raises RuntimeError if a worker has died; called while the queue is full."""
        self._read(0.0)

    def _read(self, wait: float, loading: bool = False) -> bool:
        """Take what has come within `wait` seconds; False if nothing has."""
        ready = self._poll.poll(wait * 1000)
        for rank in sorted({self._rank_of[fd] for fd, _ in ready}):
            worker = self.workers[rank]
            try:
                while worker.connection.poll():
                    self._take(worker, *pickle.loads(worker.connection.recv_bytes()), loading)
            except (EOFError, OSError):
                self._died(worker)
            if not worker.proc.is_alive():
                self._died(worker)
        return bool(ready)

    def _take(self, worker: Any, number: int, status: int, value: Any, loading: bool) -> None:
        if number <= self._settled or status == BROKEN_OFF:
            return
        if status == OK:
            self._found[worker.rank, number] = value
            return
        error, text = value
        if loading and error is not None:
            raise error
        raise RuntimeError(f"{worker.name} failed in {self._calls.get(number, 'a call')}: {text}")

    def _died(self, worker: Any) -> None:
        worker.proc.join(1.0)
        code = worker.proc.exitcode
        how = f"with exit code {code}"
        if code is not None and code < 0:
            how = f"by signal {-code} ({signal.Signals(-code).name})"
        if code == -signal.SIGKILL:
            how += "; the system does that where memory runs out"
        self.failure = f"{worker.name} died in {self._doing(worker.rank)}, {how}. Make a new engine."
        raise RuntimeError(self.failure)

    def _progress(self) -> list[tuple[int, ...]]:
        counters = self.counters
        return [
            (counters[at + DONE], *self.group.num_meetings(rank), counters[at + LOADED], counters[at + FAILED])
            for rank, at in enumerate(range(0, NUM_COUNTERS * len(self.workers), NUM_COUNTERS))
        ]

    def _doing(self, rank: int) -> str:
        """The first call that the rank has not finished, and how far it is."""
        done = self.counters[NUM_COUNTERS * rank + DONE]
        number = next((n for n in self._calls if n >= done), None)
        if number is None:
            return "no call"
        name = self._calls[number]
        step, meeting = self.group.num_meetings(rank)
        if name == "load_model":
            return f"load_model after {self.counters[NUM_COUNTERS * rank + LOADED]} tensors"
        return f"{name}, after meeting {meeting} of the ranks" if step == number else name

    def _give_up(self, timeout: float) -> None:
        progress = self._progress()
        worker = min(self.workers, key=lambda w: progress[w.rank])
        state = {"T": "The process is stopped (SIGSTOP).", "t": "The process is held by a debugger."}.get(
            state_of(worker.proc.pid), "The process is there, but does not get on."
        )
        self.failure = (
            f"{worker.name} has made no progress for {timeout:g} s in {self._doing(worker.rank)}. {state} Make a new "
            "engine; where a step may take so long, with a larger execute_model_timeout_seconds."
        )
        raise RuntimeError(self.failure)


def state_of(pid: int | None) -> str:
    """The state letter of a process ("T": stopped), "" where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
