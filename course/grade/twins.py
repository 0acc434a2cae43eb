"""What of the engine a submission may not take: its lab's twin, under every name, and whatever holds or runs the twin.

``plug`` in ``labs.toml`` says where the engine's own solution of a lab stands. That name is one of many: packages
export it, modules import it, classes have it as a default. So objects are compared, not names."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import Field
from functools import cached_property, partial, partialmethod
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from course.labs import LabError

_WRAPPERS = (staticmethod, classmethod, MethodType, property, cached_property, partial, partialmethod, Field)
_WRAPPED = ("__func__", "__self__", "fget", "fset", "fdel", "func", "args", "keywords", "default", "default_factory")


class Twins:
    """The objects behind dotted names, found when first asked for: a lab that never imports the engine pays nothing. A
    method's class is a twin too, as that is the way to the method. A subclass of a twin counts as what runs it."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.packages = frozenset(name.partition(".")[0] for name in self.names)
        self._known: dict[int, tuple[Any, str]] = {}

    def concern(self, module: str) -> bool:
        """Whether a twin can be met in ``module``: it belongs to the package of one."""
        return module.partition(".")[0] in self.packages

    @cached_property
    def objects(self) -> tuple[tuple[str, Any], ...]:
        """(dotted name, object); a method's class stands there under the method's name. Raises :class:`LabError` for a
        name that leads nowhere."""
        found = []
        for name in self.names:
            try:
                value, owner = pkgutil.resolve_name(name), pkgutil.resolve_name(name.rpartition(".")[0])
            except (AttributeError, ImportError, ValueError) as error:
                raise LabError(f"labs.toml: the plug {name!r} is not in the engine: {error}") from None
            found += [(name, one) for one in (value, owner) if one is value or isinstance(owner, type)]
        return tuple(found)

    def reason(self, value: Any) -> str:
        """Why ``value`` is withheld, to be put behind its name; "" where it is not."""
        if id(value) not in self._known:
            self._known[id(value)] = value, self._reason(value)
        return self._known[id(value)][1]

    def _reason(self, value: Any) -> str:
        if name := self._named(value):
            return f", the engine's own solution ({name})"
        seen: dict[int, Any] = {id(value): value}
        waiting = [value]
        while waiting:
            for part in self._parts(waiting.pop()):
                if name := self._named(part):
                    return f", which holds or runs the engine's own solution ({name})"
                if id(part) not in seen:
                    seen[id(part)] = part
                    waiting.append(part)
        return ""

    def _named(self, value: Any) -> str:
        return next((name for name, twin in self.objects if twin is value), "")

    def _parts(self, one: Any) -> Iterator[Any]:
        """What ``one`` refers to: items, bases, attributes, and what its code names. Code of other packages is not
        looked into, nor are modules."""
        if isinstance(one, dict):
            yield from one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            yield from one
        elif isinstance(one, _WRAPPERS):
            yield from (getattr(one, name, None) for name in _WRAPPED)
        elif issubclass(type(one), type):  # not isinstance: for Python 3.10 `list[int]` is an instance of type
            if self.concern(one.__module__):
                yield from (*one.__mro__[1:], *vars(one).values())
        elif isinstance(one, FunctionType) or hasattr(one, "__wrapped__"):
            yield getattr(one, "__wrapped__", None)
            if isinstance(one, FunctionType) and self.concern(one.__module__ or ""):
                yield from self._parts_of_function(one)
        elif not isinstance(one, ModuleType) and self.concern(type(one).__module__):
            yield type(one)
            yield from getattr(one, "__dict__", {}).values()

    def _parts_of_function(self, one: FunctionType) -> Iterator[Any]:
        yield from (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
        for cell in one.__closure__ or ():
            with suppress(ValueError):  # not filled yet
                yield cell.cell_contents
        names = set(_names(one.__code__))
        found = [one.__globals__[name] for name in names if name in one.__globals__]
        modules = [value for value in found if isinstance(value, ModuleType) and self.concern(value.__name__)]
        for name in filter(self.concern, names):  # imported inside the function
            with suppress(ImportError):
                modules.append(importlib.import_module(name))
        yield from found
        yield from (getattr(module, name, None) for module in modules for name in names)


def _names(code: CodeType) -> Iterator[str]:
    """Names that code uses, that of functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
