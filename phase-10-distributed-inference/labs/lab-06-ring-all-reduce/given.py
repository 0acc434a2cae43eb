"""Given: processes in a ring, joined by pipes, and somebody who waits for them with a clock."""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Outcome = tuple[Any, ...]
Kill = tuple[int, int] | None


class _Ends(BaseException):
    """This rank ends here, without a word."""


class Link:
    """What a rank has: a pipe to the next rank, (rank + 1) % size, and one from the rank before it.

    Attributes:
        rank, size: which one, of how many. sent: bytes that the kernel has taken so far.
    """

    def __init__(self, rank: int, size: int, read_fd: int, write_fd: int) -> None:
        self.rank, self.size, self.sent = rank, size, 0
        self._read_fd, self._write_fd = read_fd, write_fd
        self._over, self._ends_at = False, float("inf")
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    def write(self, data: bytes, wait: bool = True) -> int:
        """Hand bytes to the kernel: how many it has taken, from the front, perhaps not all.

        Where the pipe is full it waits until there is room, for ever if need be; wait=False: 0.
        BrokenPipeError: nobody is there to read.
        """
        if self.sent >= self._ends_at:
            raise _Ends
        while wait and not self.ready(3600.0, to_read=False)[1]:
            pass
        try:
            count = os.write(self._write_fd, data)
        except BlockingIOError:
            return 0
        self.sent += count
        return count

    def read(self, most: int, wait: bool = True) -> bytes | None:
        """At most so many bytes, at least one. b"": the rank before is gone, and all it sent has been read.

        Where the pipe is empty it waits until something comes, for ever if need be; wait=False: None.
        """
        while wait and not self.ready(3600.0, to_write=False)[0]:
            pass
        try:
            return os.read(self._read_fd, most)
        except BlockingIOError:
            return None

    def ready(self, timeout_s: float, to_read: bool = True, to_write: bool = True) -> tuple[bool, bool]:
        """Wait until one of the ends that are asked for is ready, at most so long: whether a read, whether a write
        would do something at once (be it to say that somebody is gone)."""
        ends = [self._read_fd] if to_read else [], [self._write_fd] if to_write else []
        deadline = time.monotonic() + timeout_s
        while True:
            readable, writable, _ = select.select(*ends, [], min(0.1, max(0.0, deadline - time.monotonic())))
            if self._over:
                raise SystemExit("the launcher does not wait any longer")
            if readable or writable or time.monotonic() >= deadline:
                return bool(readable), bool(writable)

    @staticmethod
    def numbers(data: bytes, dtype: Any) -> np.ndarray:
        """The array whose `tobytes()` these are."""
        return np.frombuffer(data, dtype).copy()


def pipe_capacity() -> int:
    """Bytes that a pipe of this machine takes before anybody reads."""
    read_fd, write_fd = os.pipe()
    try:
        if hasattr(fcntl, "F_GETPIPE_SZ"):
            return fcntl.fcntl(write_fd, fcntl.F_GETPIPE_SZ)
        os.set_blocking(write_fd, False)
        taken = 0
        while True:
            try:
                taken += os.write(write_fd, bytes(4096))
            except BlockingIOError:
                return taken
    finally:
        os.close(read_fd)
        os.close(write_fd)


def launch(
    fn: Callable[[Any, Link], Any],
    xs: Sequence[Any],
    kill: Kill = None,
    leave: int | None = None,
    limit_s: float = 10.0,
) -> list[Outcome]:
    """fn(xs[rank], link) in a process for each of xs, in a ring.

    Args:
        kill: (rank, bytes): this rank ends without a word when it would write and has sent so many bytes; with 0
            before it does anything. Its neighbours see its pipes close.
        leave: this rank is not waited for; it is killed when all others have answered.
        limit_s: who has not answered by then is killed.

    Returns:
        For each rank ("ok", result, bytes sent), ("err", name of the error, its text), ("dead",) or ("hang",).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside other threads
            found = _in_processes(fn, xs, kill, leave, limit_s)
    except PermissionError:  # where a sandbox forbids processes, threads with the same pipes take their place
        found = _in_threads(fn, xs, kill, leave, limit_s)
    for rank, answer in enumerate(found):
        if answer[0] == "stub":
            fn(xs[rank], Link(rank, 1, *os.pipe()))  # once more in this process, so that it is seen where it stands
            raise NotImplementedError(answer[1])
    return found


def _answer(fn: Callable[[Any, Link], Any], x: Any, link: Link, kill: Kill) -> Outcome:
    if kill and kill[0] == link.rank:
        link._ends_at = kill[1]
    try:
        if link._ends_at == 0:
            raise _Ends
        return "ok", fn(x, link), link.sent
    except NotImplementedError as error:
        return "stub", str(error)
    except _Ends:
        return ("dead",)
    except BaseException as error:
        return "err", type(error).__name__, str(error)


def _in_processes(fn: Callable, xs: Sequence[Any], kill: Kill, leave: int | None, limit_s: float) -> list:
    size, pids = len(xs), []
    ring = [os.pipe() for _ in range(size)]  # ring[r]: from rank r to the next
    answers = [os.pipe() for _ in range(size)]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                _child(fn, xs[rank], rank, size, ring, answers, kill)
            pids.append(pid)
        for fd in [fd for pair in ring for fd in pair] + [write_fd for _, write_fd in answers]:
            os.close(fd)
        return _collect([read_fd for read_fd, _ in answers], leave, limit_s)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # one that has ended takes it without harm
            os.waitpid(pid, 0)
        for fd in [read_fd for read_fd, _ in answers] if pids else [fd for pair in ring + answers for fd in pair]:
            os.close(fd)


def _child(fn: Callable, x: Any, rank: int, size: int, ring: list, answers: list, kill: Kill) -> None:
    """Never returns. All ends of others are closed: a copy that stays open would keep a pipe alive for ever."""
    try:
        before, mine = ring[rank - 1][0], ring[rank][1]
        for fd in {fd for pair in ring + answers for fd in pair} - {before, mine, answers[rank][1]}:
            os.close(fd)
        data = pickle.dumps(_answer(fn, x, Link(rank, size, before, mine), kill))
        with os.fdopen(answers[rank][1], "wb") as file:
            file.write(data)
    finally:
        os._exit(0)


def _collect(fds: list[int], leave: int | None, limit_s: float) -> list[Outcome]:
    parts = [b""] * len(fds)
    open_fds, deadline = dict(zip(fds, range(len(fds)), strict=True)), time.monotonic() + limit_s
    while open_fds and (left := deadline - time.monotonic()) > 0 and list(open_fds.values()) != [leave]:
        for fd in select.select(list(open_fds), [], [], left)[0]:
            data = os.read(fd, 1 << 16)
            parts[open_fds[fd]] += data
            if not data:
                del open_fds[fd]
    return [
        ("hang",) if rank in open_fds.values() else pickle.loads(data) if data else ("dead",)
        for rank, data in enumerate(parts)
    ]


def _in_threads(fn: Callable, xs: Sequence[Any], kill: Kill, leave: int | None, limit_s: float) -> list:
    size, found = len(xs), [("hang",)] * len(xs)
    ring = [os.pipe() for _ in range(size)]
    links = [Link(rank, size, ring[rank - 1][0], ring[rank][1]) for rank in range(size)]

    def work(rank: int) -> None:
        found[rank] = _answer(fn, xs[rank], links[rank], kill)
        for fd in (ring[rank - 1][0], ring[rank][1]):
            os.close(fd)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for rank, thread in enumerate(threads):
        if rank != leave:
            thread.join(max(0.0, deadline - time.monotonic()))
    answers = list(found)
    for link in links:
        link._over = True
    for thread in threads:
        thread.join(1.0)
    return answers


def left_to_right(xs: Sequence[np.ndarray]) -> np.ndarray:
    """The sum in the order of the ranks, in the type of the arrays: what one process would compute."""
    total = xs[0].copy()
    for x in xs[1:]:
        total += x
    return total
