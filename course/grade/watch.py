"""Walls inside the interpreter: an audit hook, and a look at what must not have changed.

An audit hook cannot be taken off again. It looks for the file of the submission behind an event: code of the course
or of a library may open files and look at frames, a submission may not."""

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_FAMILIES = "os. socket. subprocess. ctypes. shutil. signal. gc.get_ mmap. resource. fcntl."
_SINGLE = """
    open sys._current_frames sys.settrace sys.setprofile sys.addaudithook sys._current_exceptions code.__new__ glob.glob
    tempfile.mkstemp tempfile.mkdtemp pty.spawn
"""
_PREFIXES, _EVENTS = tuple(_FAMILIES.split()), frozenset(_SINGLE.split())
_NEAR = frozenset(["sys._getframe", "sys._getframemodulename", "compile", "exec"])
"""Events that libraries raise in a submission's name (namedtuple looks at its caller): only a direct call counts."""
_ATTRIBUTE_EVENTS = frozenset(["object.__getattr__", "object.__setattr__", "object.__delattr__"])
_INNER = "__code__ __defaults__ __kwdefaults__ tb_frame gi_frame gi_code cr_frame cr_code ag_frame ag_code"
_ATTRIBUTES = frozenset(_INNER.split())


class Guard:
    """Refuses what the file ``lab`` asks for, and keeps a note: ``found``."""

    def __init__(self, lab: Path) -> None:
        self.lab = str(lab)
        self.found: list[str] = []
        self.inside = False
        paths = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.__file__.rpartition(os.sep)[0])
        self.stdlib = tuple({f"{path}{os.sep}" for path in paths if path})
        self.packages = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        near = event in _NEAR
        if event in _ATTRIBUTE_EVENTS:
            if args[1] not in _ATTRIBUTES:
                return
            near = True
        elif not near and event not in _EVENTS and not event.startswith(_PREFIXES):
            return
        if self.inside:  # the look at the frame below is an event itself
            return
        self.inside = True
        try:
            frame = sys._getframe(1)
            asked = self._is_lab(frame) if near else self._behind(frame)
        except ValueError:
            return
        finally:
            self.inside = False
        if asked:
            named = args[1:2] if event in _ATTRIBUTE_EVENTS else args[:1]
            self.refuse(" ".join([event, *(repr(str(a)[:80]) for a in named if isinstance(a, (str, bytes)))]))

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

    def refuse(self, what: str) -> None:
        """Notes and raises."""
        if len(self.found) < 20 and what not in self.found:
            self.found.append(what)
        raise PermissionError(f"not allowed in a graded lab: {what}")


_TOPS = "_pytest pytest pluggy course mini_vllm builtins math random operator unittest json re functools linecache"
WATCHED = frozenset(_TOPS.split())
_ALSO = "numpy numpy.testing numpy.linalg numpy.random numpy.core numpy._core torch torch.testing torch._tensor"


class Snapshot:
    """What stood before a submission ran: the functions and classes (with their methods) on which the verdict of a test
    rests. The code inside a function is watched by the guard's audit hook."""

    def __init__(self, extra: Iterable[ModuleType] = ()) -> None:
        loaded, extra = list(sys.modules.items()), set(extra)
        modules = [m for name, m in loaded if name.partition(".")[0] in WATCHED or name in _ALSO.split()]
        self.rows: list[tuple[Any, str, Any, str]] = [(sys.modules, m.__name__, m, m.__name__) for m in modules]
        self.sizes: list[tuple[Any, int, frozenset[str], str]] = []
        for module in dict.fromkeys([*modules, *extra]):
            for name, value in list(vars(module).items()):
                if callable(value) or (module in extra and not name.startswith("_")):
                    self.rows.append((vars(module), name, value, f"{module.__name__}.{name}"))
                if isinstance(value, type) and value.__module__ == module.__name__:
                    self._add_class(value, f"{module.__name__}.{name}")

    def _add_class(self, value: type, words: str) -> None:
        space = vars(value)
        self.sizes.append((space, len(space), frozenset(space), words))
        for part, inner in list(space.items()):
            if callable(inner):
                self.rows.append((space, part, inner, f"{words}.{part}"))

    def changes(self) -> list[str]:
        """What is no longer as it was (``_pytest.runner.call_and_report``)."""
        found = [words for space, name, value, words in self.rows if space.get(name) is not value]
        for space, size, names, words in self.sizes:
            if len(space) != size:
                added = [name for name in space if name not in names and callable(space[name])]
                found += [f"{words}.{name}" for name in added]
        return found
