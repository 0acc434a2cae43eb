"""What the workers answer, and what their silence means.

A worker that dies is known by its pipe and its sentinel, at once. One that hangs, or is stopped, makes no progress: it
finishes no call, comes to no barrier, loads no tensor. After a time limit without progress of any, the one furthest
behind is named, since the others may only be waiting for it.

Upstream twin: `vllm/v1/executor/multiproc_executor.py` (`collective_rpc`, `start_worker_monitor`), where the time runs
from the call on.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import time
from collections.abc import Sequence
from typing import Any

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.distributed.shared_memory import Counters
from mini_vllm.executor.worker_proc import BROKEN_OFF, DONE, FAILED, LOADED, NUM_COUNTERS, OK, PROGRESS
from mini_vllm.utils.system_utils import Owner

_BETWEEN_LOOKS_S = 1e-3
_STATES = {
    "T": "The process is stopped (SIGSTOP).",
    "t": "The process is held by a debugger.",
    "remote": "It is on another machine: the process does not get on, or nothing comes through.",
}


class Replies:
    """Reads the pipes of all workers.

    Args:
        workers: `WorkerProcHandle`s, by rank from 1 on.

    Attributes:
        failure: why the workers are of no use any more, None as long as they are.
        owner: the process whose workers they are.
    """

    def __init__(self, workers: Sequence[Any], group: TensorParallelGroup, counters: Counters) -> None:
        self.workers, self.group, self.counters = workers, group, counters
        self.failure: str | None = None
        self.owner = Owner()
        self._calls: dict[int, str] = {}
        self._found: dict[tuple[int, int], Any] = {}
        self._settled = -1
        self._timeout: float | None = None
        self._since, self._next_look = 0.0, 0.0
        self._progress_then: list[tuple[int, ...]] | None = None
        self._places = [NUM_COUNTERS * worker.rank for worker in workers]
        self._poll = select.poll()
        self._worker_at: dict[int, Any] = {}
        for worker in workers:
            for fd in (worker.connection.fileno(), worker.proc.sentinel):
                self._poll.register(fd, select.POLLIN)
                self._worker_at[fd] = worker

    def expect(self, number: int, name: str, timeout: float | None) -> None:
        """A call goes out. timeout: seconds without progress after which it is given up; None: no limit."""
        self._calls[number], self._timeout, self._progress_then = name, timeout, None

    def forget(self, number: int) -> None:
        """Nobody waits for the calls up to this one any more, whatever they still answer."""
        self._settled = number
        self._calls.clear()
        self._found.clear()

    def raise_if_failed(self) -> None:
        """Raises RuntimeError with the reason; a fork of the engine's process is one."""
        self.failure = self.failure or self.owner.refusal
        if self.failure is not None:
            raise RuntimeError(self.failure)

    def collect(self, number: int, loading: bool = False) -> list[Any]:
        """Wait for the answers of all workers to a call; by rank, from 1 on.

        Args:
            loading: raise a worker's own exception, as if the model had been loaded here.
        """
        while any((worker.rank, number) not in self._found for worker in self.workers):
            if not self._read(self._between_looks, loading):
                self._watch_progress()
        answers = [self._found[worker.rank, number] for worker in self.workers]
        self.forget(number)
        return answers

    def finish(self, number: int) -> None:
        """Wait until all workers are through with a call that they do not answer. Raises where one failed."""
        if self.counters.is_shared:
            for at in self._places:
                self.counters.wait(at + DONE, number + 1, self.check)
        while not self._are_done(number):
            if not self._read(self._between_looks):
                self._watch_progress()
        while self._somebody_failed():
            self._read(1.0)  # it says why
        self.forget(number)

    def settle(self, number: int, seconds: float) -> None:
        """After a failure, where ranks share no counters: all have to come to the end of the call, or they wait for
        the one that failed, and are of no use any more."""
        deadline = time.monotonic() + seconds
        while self.failure is None and not self._are_done(number):
            if time.monotonic() > deadline:
                late = next(w for w in self.workers if self.counters[NUM_COUNTERS * w.rank + DONE] <= number)
                self.failure = f"{late.name} cannot go on after the failure of another rank. Make a new engine."
            with contextlib.suppress(RuntimeError):
                self._read(_BETWEEN_LOOKS_S)

    def _are_done(self, number: int) -> bool:
        return all(self.counters[at + DONE] > number for at in self._places)

    @property
    def _between_looks(self) -> float:
        return 1.0 if self._timeout is None else min(1.0, self._timeout / 4)

    def check(self) -> None:
        """Called while rank 0 waits: raises where that has become senseless."""
        now = time.monotonic()
        if now < self._next_look and not self._somebody_failed():
            return
        self._next_look = now + _BETWEEN_LOOKS_S
        self._read(0.0)
        self._watch_progress()

    def look(self) -> None:
        """Raises RuntimeError if a worker has died."""
        self._read(0.0)

    def _somebody_failed(self) -> bool:
        return any(self.counters[at + FAILED] > self._settled + 1 for at in self._places)

    def _read(self, wait: float, loading: bool = False) -> bool:
        """Take what has come within `wait` seconds; False if nothing has."""
        if self.owner.refusal is not None:  # the answers are the owner's
            self.raise_if_failed()
        ready = self._poll.poll(wait * 1000)
        for worker in {id(w): w for w in (self._worker_at[fd] for fd, _ in ready)}.values():
            try:
                while worker.connection.poll():
                    number, status, value = pickle.loads(worker.connection.recv_bytes())
                    self._take(worker, number, status, value, loading)
            except (EOFError, OSError):
                self._died(worker)
            if not worker.proc.is_alive():
                self._died(worker)
        return bool(ready)

    def _take(self, worker: Any, number: int, status: int, value: Any, loading: bool) -> None:
        if status == PROGRESS:  # where ranks share no counters
            self.counters[number] = value
            return
        if number <= self._settled or status == BROKEN_OFF:
            return
        if status == OK:
            self._found[worker.rank, number] = value
            return
        error, text = value
        if loading and error is not None:
            raise error
        raise RuntimeError(f"{worker.name} failed in {self._calls.get(number, 'a call')}: {text}")

    def _watch_progress(self) -> None:
        if self._timeout is None:
            return
        now, progress = time.monotonic(), self._progress()
        if progress != self._progress_then:
            self._since, self._progress_then = now, progress
        elif now > self._since + self._timeout:
            self._give_up(self._timeout)

    def _died(self, worker: Any) -> None:
        how = worker.how_it_ended()
        self.failure = f"{worker.name} died in {self._doing(worker.rank)}, {how}. Make a new engine."
        raise RuntimeError(self.failure)

    def _progress(self) -> list[tuple[int, ...]]:
        counters = self.counters
        return [
            (counters[at + DONE], *self.group.num_meetings(worker.rank), counters[at + LOADED], counters[at + FAILED])
            for at, worker in zip(self._places, self.workers, strict=True)
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
        worker = self.workers[progress.index(min(progress))]
        state = _STATES.get(worker.state, "The process is there, but does not get on.")
        self.failure = (
            f"{worker.name} has made no progress for {timeout:g} s in {self._doing(worker.rank)}. {state} Make a new "
            "engine; where a step may take so long, with a larger execute_model_timeout_seconds."
        )
        raise RuntimeError(self.failure)
