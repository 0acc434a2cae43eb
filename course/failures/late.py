"""A lab test past its time limit fails instead of ending pytest, where there is no alarm signal (Windows).

There pytest-timeout's method is ``thread``: it prints all stacks and exits. For labs these hooks raise in the test's
thread instead, which reaches any loop written in Python; what does not come back to Python ends the process later."""

import ctypes
import faulthandler
import threading
from typing import Any

import pytest

from course import labs

GRACE = 10.0  # seconds from the exception to the end of the process
TIMER = pytest.StashKey[threading.Timer]()


class TimeoutFailed(pytest.fail.Exception):  # type: ignore[name-defined]
    """Raised in the test's thread; not an ``Exception``, so that an ``except`` in a loop does not swallow it."""

    def __init__(self) -> None:
        super().__init__("Timeout: the test did not end within its limit")


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Takes over for lab tests where the method is ``thread``."""
    if settings.method != "thread" or labs.lab_of(item.nodeid) is None:
        return None
    thread = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    timer = threading.Timer(settings.timeout, raise_in, (thread, ctypes.py_object(TimeoutFailed)))
    timer.daemon = True
    timer.start()
    item.stash[TIMER] = timer
    faulthandler.dump_traceback_later(settings.timeout + GRACE, exit=True)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """The test has ended in time."""
    timer = item.stash.get(TIMER, None)
    if timer is None:
        return None
    timer.cancel()
    faulthandler.cancel_dump_traceback_later()
    return True
