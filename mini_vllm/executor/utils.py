"""What starting processes and Ctrl-C have to do with each other. Used by `multiproc_executor.py` alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_SIGINT = int(signal.SIGINT)
_set_handler = getattr(signal.signal, "__wrapped__", signal.signal)
"""Without the detour through enums, which costs more than all the rest of a step's message."""


class Postponed:
    """Ctrl-C between `begin` and the end of what is wrapped by `until_done` takes effect after it.

    The ranks have to take in every plan, or none: half a plan in one of them would put its rows into another order.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._came: tuple[int, FrameType | None] | None = None

    def begin(self) -> None:
        """Nothing happens in other threads than the main one, where no signal is handled."""
        if threading.current_thread() is threading.main_thread():
            self._before = _set_handler(_SIGINT, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._came = signum, frame

    def end(self) -> None:
        """Handle what has come. A second call does nothing."""
        before, self._before = self._before, None
        if before is None:
            return
        _set_handler(_SIGINT, before)
        came, self._came = self._came, None
        if came is not None and callable(before):
            before(*came)

    def until_done(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, and then `end`."""

        def wrapped(*args: Any) -> Any:
            result = function(*args)
            self.end()
            return result

        return wrapped


@contextmanager
def main_left_alone(wanted: bool) -> Iterator[None]:
    """A spawned process imports the script that `__main__` is. While inside, there is none (unless not `wanted`)."""
    main = sys.modules["__main__"]
    if wanted:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes started inside have a BLAS of one thread: the cores go to the ranks.

    Upstream: upstream/vllm/v1/executor/multiproc_executor.py:178 — calls `configure_omp_envs`.
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
