"""Walls inside the interpreter: an audit hook, an import guard, and a look at what must not have changed.

An audit hook cannot be taken off again. It looks for the file of the submission behind an event: code of the course
or of a library may open files and look at frames, a submission may not.
"""

from __future__ import annotations

import builtins
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from course.grade.screen import permitted

_PREFIXES = (
    "os.",
    "socket.",
    "subprocess.",
    "ctypes.",
    "shutil.",
    "signal.",
    "gc.get_",
    "mmap.",
    "resource.",
    "fcntl.",
)
_EVENTS = frozenset(
    [
        "open",
        "sys._current_frames",
        "sys.settrace",
        "sys.setprofile",
        "sys.addaudithook",
        "sys._current_exceptions",
        "code.__new__",
        "glob.glob",
        "tempfile.mkstemp",
        "tempfile.mkdtemp",
        "pty.spawn",
    ]
)
_NEAR = frozenset(["sys._getframe", "sys._getframemodulename"])
"""Events that libraries raise in a submission's name (namedtuple looks at its caller): only a direct call counts."""


class Guard:
    """Refuses what the file ``lab`` asks for, and keeps a note: ``found``."""

    def __init__(self, lab: Path) -> None:
        self.lab = str(lab)
        self.found: list[str] = []
        self.code: Any = None
        paths = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.__file__.rpartition(os.sep)[0])
        self.stdlib = tuple({f"{path}{os.sep}" for path in paths if path})
        self.packages = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})

    def install(self, allowed: Iterable[str]) -> None:
        """From here on; for good."""
        sys.addaudithook(self._hook)
        builtins.__import__ = self._import(builtins.__import__, frozenset(allowed))
        self.code = _code(builtins.__import__)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        near = event in _NEAR
        if not near and event not in _EVENTS and not event.startswith(_PREFIXES):
            return
        try:
            raise KeyError
        except KeyError as error:  # a frame without an event of its own
            assert error.__traceback__ is not None
            frame = error.__traceback__.tb_frame.f_back
        if frame is not None and (self._is_lab(frame) if near else self._behind(frame)):
            what = f"{event} {str(args[0])[:80]!r}" if args and isinstance(args[0], (str, bytes)) else event
            self._refuse(what)

    def _is_lab(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        return name == self.lab or (name.startswith("<") and not name.startswith("<frozen"))

    def _behind(self, frame: FrameType | None) -> bool:
        """Whether the submission asked: the first caller outside the standard library is its file."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith("<frozen importlib") or name.endswith(("linecache.py", "tokenize.py")):
                return False
            if self._is_lab(frame):
                return not name.startswith("<__array_function__")
            if name.startswith(self.packages) or not (name.startswith(self.stdlib) or name.startswith("<frozen")):
                return False
            frame = frame.f_back
        return False

    def _refuse(self, what: str) -> None:
        if len(self.found) < 20 and what not in self.found:
            self.found.append(what)
        raise PermissionError(f"not allowed in a graded lab: {what}")

    def _import(self, original: Callable[..., Any], allowed: frozenset[str]) -> Callable[..., Any]:
        def guarded(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            asked = level == 0 and globals is not None and globals.get("__file__") == self.lab
            if asked and not permitted(name, allowed):
                self._refuse(f"import {name}")
            return original(name, globals, locals, fromlist, level)

        return guarded


WATCHED = ("_pytest", "pytest", "pluggy", "course", "mini_vllm", "builtins", "math", "random", "operator", "unittest")
_NUMPY = ("numpy", "numpy.testing", "numpy.linalg", "numpy.random", "numpy.core", "numpy._core")


def fingerprint(extra: Iterable[ModuleType] = ()) -> dict[tuple[str, str], tuple[Any, Any]]:
    """The functions and classes (with their methods' code) on which the verdict of a test rests."""
    modules = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in WATCHED or n in _NUMPY]
    seen: dict[tuple[str, str], tuple[Any, Any]] = {}
    for module in [*modules, *extra]:
        for name, value in list(vars(module).items()):
            if not callable(value) and name.startswith("_"):
                continue
            if callable(value) or module in extra:
                seen[module.__name__, name] = (value, _code(value))
            if isinstance(value, type) and value.__module__ == module.__name__:
                for part, inner in list(vars(value).items()):
                    if callable(inner) and part != "__abstractmethods__":
                        seen[module.__name__, f"{name}.{part}"] = (inner, _code(inner))
    return seen


def _code(value: Any) -> Any:
    return value.__code__ if isinstance(value, FunctionType) else None


def changes(before: dict[tuple[str, str], tuple[Any, Any]]) -> list[str]:
    """What is no longer as it was: ``_pytest.runner.call_and_report``."""
    found = []
    for (module, name), (value, code) in before.items():
        holder: Any = sys.modules.get(module)
        for part in name.split("."):
            holder = vars(holder).get(part) if holder is not None and hasattr(holder, "__dict__") else None
        if holder is not value or _code(value) is not code:
            found.append(f"{module}.{name}")
    return found
