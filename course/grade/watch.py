"""Walls inside the interpreter: an audit hook, and a look at what must not have changed.

An audit hook cannot be taken off again. It looks for the file of the submission behind an event: code of the course
or of a library may open files and look at frames, a submission may not."""

import os
import sys
import sysconfig
from collections.abc import Iterable
from operator import is_
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from course.grade.language import WORDS

_WATCH = {name: tuple(words.split()) for name, words in WORDS["watch"].items()}
"""``near``: events that libraries raise in a submission's name (namedtuple does): only a direct call counts."""


_SPEAKS = (AssertionError, pytest.fail.Exception)
"""By which a test speaks. What a generator raises while it is thrown away, nobody would hear."""


class Guard:
    """Refuses what the file ``lab`` asks for, and keeps a note: ``found``."""

    def __init__(self, lab: Path) -> None:
        self.lab = str(lab)
        self.found: list[str] = []
        self.inside = False
        paths = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.__file__.rpartition(os.sep)[0])
        self.stdlib = tuple({f"{path}{os.sep}" for path in paths if path})
        others = (f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib"))
        self.others = (*others, "<frozen importlib")

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        inner = event in _WATCH["attribute_events"]
        near = event in _WATCH["near"] or (inner and args[1] in _WATCH["attributes"])
        if event == "sys.unraisablehook" and isinstance(args[1].exc_value, _SPEAKS):
            self.found.append(f"silence for {type(args[1].exc_value).__name__}, in an object that was thrown away")
        if self.inside or not (near or event in _WATCH["events"] or event.startswith(_WATCH["families"])):
            return  # the look at the frame below is an event itself
        self.inside = True
        asked, self.inside = self._asked(sys._getframe(1), near), False
        if asked:
            named = [repr(str(a)[:80]) for a in args[inner : inner + 1] if isinstance(a, (str, bytes))]
            what = " ".join([event, *named])
            self.found += [what] if len(self.found) < 20 and what not in self.found else []
            raise PermissionError(f"not allowed in a graded lab: {what}")

    def _asked(self, frame: FrameType | None, near: bool) -> bool:
        """Whether the first caller outside the standard library (``near``: the caller) is its file, or text it ran."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self.lab or (name.startswith("<") and not name.startswith(("<frozen", "<__array_function__"))):
                return True
            library = name.startswith((*self.stdlib, "<frozen")) and not name.startswith(self.others)
            if near or not library or name.endswith(("linecache.py", "tokenize.py")):
                return False
            frame = frame.f_back
        return False


class Snapshot:
    """The functions, classes and tests on which verdicts rest, before a submission ran; the guard watches the code in
    them."""

    def __init__(self, extra: Iterable[ModuleType] = (), items: Iterable[Any] = ()) -> None:
        self.items = [(item, getattr(item, "obj", None), dict(vars(item))) for item in items]
        loaded, extra = list(sys.modules.items()), set(extra)
        modules = [m for name, m in loaded if name.partition(".")[0] in _WATCH["tops"] or name in _WATCH["modules"]]
        self.rows: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {}
        self.rows[""] = (sys.modules, {m.__name__: m for m in modules}, [])
        self.sizes: list[tuple[Any, int, frozenset[str], str]] = []
        for module in dict.fromkeys([*modules, *extra]):
            space, own = list(vars(module).items()), module in extra
            some = {name: value for name, value in space if callable(value) or (own and name[:1] != "_")}
            self.rows[f"{module.__name__}."] = (vars(module), some, [value for _, value in space])
            for name, value in space:
                if isinstance(value, type) and value.__module__ == module.__name__:
                    self._add_class(value, f"{module.__name__}.{name}")

    def _add_class(self, value: type, words: str) -> None:
        space = vars(value)
        self.sizes.append((space, len(space), frozenset(space), words))
        some = {part: inner for part, inner in space.items() if callable(inner) or hasattr(inner, "__get__")}
        self.rows[f"{words}."] = (space, some, list(space.values()))  # methods, properties

    def changes(self) -> list[str]:
        """What is no longer as it was (``_pytest.runner.call_and_report``)."""
        kept = ("_fixtureinfo", "callspec", "parent", "name", "runtest", "setup", "teardown", "__class__")
        found = [
            f"the test {was['name']}"
            for item, obj, was in self.items
            if getattr(item, "obj", None) is not obj or any(vars(item).get(key) is not was.get(key) for key in kept)
        ]
        for words, (space, some, values) in self.rows.items():
            if len(space) == len(values) and all(map(is_, space.values(), values)):
                continue  # nothing at all has changed, as almost everywhere
            found += [words + name for name, value in some.items() if space.get(name) is not value]
        for space, _, names, words in [row for row in self.sizes if len(row[0]) != row[1]]:
            found += [
                f"{words}.{name}"
                for name in space
                if name not in names and (callable(space[name]) or hasattr(space[name], "__get__"))
            ]
        return found
