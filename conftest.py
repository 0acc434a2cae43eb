"""Loads the course's pytest plugin for every test run in this repository, and says how the suite is run."""

import itertools
import os
import re
import signal
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # containers set it, and each process would compile the engine anew
    sys.dont_write_bytecode = False
if "PYTEST_XDIST_WORKER" in os.environ:  # a worker has a core; the threads of BLAS would wait for each other's
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one worker, so that what its fixtures build is built once; `--dist` asks for another way.

    Files come in the order of collection, which ends with the labs: small ones, so that both workers end together.
    """
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """On a fresh clone the workers share what is compiled."""
    if hasattr(session.config, "workerinput") and not sys.dont_write_bytecode:
        from course import compiled

        compiled.write_share(session.config, partial(pytest_ignore_collect, config=session.config))


MARKS = ("gpu", "slow", "maintainer", "needs_torch", "real_vllm")


def _has(marks: frozenset[str], name: str, /, **_: Any) -> bool:
    return name in marks


@cache
def _selects(wanted: str, marks: frozenset[str]) -> bool:
    """Whether `-m WANTED` can select a test that has all of `marks`, whatever others it has."""
    from _pytest.mark.expression import Expression

    expression = Expression.compile(wanted)
    more = itertools.chain.from_iterable(itertools.combinations(MARKS, number) for number in range(len(MARKS) + 1))
    return any(expression.evaluate(partial(_has, marks.union(others))) for others in more)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A module whose tests `-m` leaves out, all of them, is not even imported."""
    wanted = config.getoption("markexpr", "")
    if not wanted or not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    line = re.search(r"^pytestmark = (.*)$", collection_path.read_text(encoding="utf-8"), re.MULTILINE)
    marks = frozenset(re.findall(r"\bpytest\.mark\.(\w+)", line[1] if line else "")) & set(MARKS)
    return True if marks and not _selects(wanted, marks) else None
