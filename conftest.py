"""Loads the course's pytest plugin for every test run in this repository."""

import signal
from typing import Any

import pytest

pytest_plugins = ["course.pytest_plugin"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell without job control starts what it puts in the background; children inherit it, and tests send SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _some(self: Any, actual: object) -> bool:
    """All of no numbers are close: in pytest `np.zeros(0) == pytest.approx(5.0)` is true. Here it is not."""
    return getattr(actual, "size", 1) != 0 and bool(_CLOSE(self, actual))


_SCALAR: Any = type(pytest.approx(0.0))
_CLOSE = _SCALAR.__eq__
_SCALAR.__eq__ = _some
