"""Threads that read and write: reading goes first for some of them, writing for the others.

Upstream twin: `vllm/v1/kv_offload/tiering/fs/thread_pool.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mini_vllm.kv_offload.tiering.base import JobId
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
Task = Callable[[], None]


@dataclass
class JobState:
    """How many tasks of a job are left, and whether one has failed.

    Upstream: upstream/vllm/v1/kv_offload/tiering/fs/thread_pool.py:21 — `JobState`.
    """

    job_id: JobId
    num_left: int
    success: bool = True


class DualQueueThreadPool:
    """Args:
        n_read_threads: threads that load first. n_write_threads: threads that store first. Either does the other where
            it has nothing of its own to do.
        thread_name_prefix: of their names.

    Upstream: upstream/vllm/v1/kv_offload/tiering/fs/thread_pool.py:50 — `DualQueueThreadPool`.
    """

    def __init__(self, n_read_threads: int, n_write_threads: int, thread_name_prefix: str) -> None:
        self._load_q: deque[tuple[Task, JobState]] = deque()
        self._store_q: deque[tuple[Task, JobState]] = deque()
        self._condition = threading.Condition()
        self._stop, self._num_unfinished = False, 0
        self._finished_q: deque[tuple[JobId, bool]] = deque()
        kinds = [("l", self._load_q, self._store_q)] * n_read_threads
        kinds += [("s", self._store_q, self._load_q)] * n_write_threads
        self._threads = [
            threading.Thread(target=self._worker, args=queues, name=f"{thread_name_prefix}_{kind}{i}", daemon=True)
            for i, (kind, *queues) in enumerate(kinds)
        ]
        for thread in self._threads:
            thread.start()

    def enqueue_load(self, job_id: JobId, tasks: Iterable[Task]) -> None:
        """A job of reading; one without tasks has ended."""
        self._enqueue(self._load_q, job_id, list(tasks))

    def enqueue_store(self, job_id: JobId, tasks: Iterable[Task]) -> None:
        """A job of writing."""
        self._enqueue(self._store_q, job_id, list(tasks))

    def _enqueue(self, queue: deque[tuple[Task, JobState]], job_id: JobId, tasks: list[Task]) -> None:
        if not tasks:
            self._finished_q.append((job_id, True))
            return
        state = JobState(job_id, len(tasks))
        with self._condition:
            queue.extend((task, state) for task in tasks)
            self._num_unfinished += len(tasks)
            self._condition.notify_all()

    def get_finished(self) -> list[tuple[JobId, bool]]:
        """Jobs that have ended since the last call, and whether all of their tasks went well."""
        return [self._finished_q.popleft() for _ in range(len(self._finished_q))]

    def wait_idle(self) -> None:
        """Return when nothing is left to do."""
        with self._condition:
            self._condition.wait_for(lambda: not self._num_unfinished or self._stop)

    def shutdown(self) -> None:
        """Drop what has not begun, wait for what has."""
        with self._condition:
            self._stop = True
            self._load_q.clear()
            self._store_q.clear()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _worker(self, first: deque[tuple[Task, JobState]], second: deque[tuple[Task, JobState]]) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stop or first or second)
                if self._stop:
                    return
                task, state = (first or second).popleft()
            try:
                task()
                success = True
            except Exception as error:  # whatever it is: the blocks of this job are computed again
                logger.warning("%s", error)
                success = False
            with self._condition:
                state.success &= success
                state.num_left -= 1
                self._num_unfinished -= 1
                if not state.num_left:
                    self._finished_q.append((state.job_id, state.success))
                self._condition.notify_all()
