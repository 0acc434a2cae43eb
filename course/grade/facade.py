"""What a submission gets in place of a module that it imports, and of ``getattr`` and its kin.

A facade has the module's public names and nothing behind them: no module that the lab may not import, no private
name, and what is assigned to it changes nothing for the tests. Code of the course and of libraries keeps the real ones.
"""

import ast
import builtins
import itertools
import operator
import random
from collections.abc import Callable, Collection, Iterable
from types import ModuleType
from typing import Any

from course.grade.screen import FORGING, HARMLESS_MODULES, RISKY_ATTRIBUTES, permitted
from course.grade.twins import Twins
from course.labs import COURSE, tomllib

Refuse = Callable[[str], None]

WITHHELD: dict[str, list[str]] = tomllib.loads((COURSE / "walls.toml").read_text(encoding="utf-8"))["withheld"]
"""Public names that run text as code, look behind an object, or reach files or memory."""
REAL = ("triton",)
"""Packages that look at the modules in a kernel's globals, so that they need the real ones."""


class Facades:
    """The faces of modules for one submission. ``fine``: modules that it may import; ``plug``: dotted names of what its
    lab asks for, which it may not take from the engine under any name (see :class:`Twins`); ``refuse`` is called with
    what is withheld, and raises."""

    def __init__(self, fine: Iterable[str], plug: Iterable[str], refuse: Refuse) -> None:
        self.fine, self.refuse, self.twins = frozenset(fine), refuse, Twins(plug)
        self.made: dict[str, ModuleType] = {}

    def of(self, module: ModuleType) -> ModuleType:
        """The facade of ``module``; one for each module, so that ``import`` gives the same object again."""
        name = module.__name__
        if name.partition(".")[0] in REAL:
            return module
        if name not in self.made:
            self.made[name] = self._face(module, name)
        return self.made[name]

    def _face(self, module: ModuleType, name: str) -> ModuleType:
        made = ModuleType(name, module.__doc__)
        closed: Collection[str] = WITHHELD.get(name, ())
        if name.partition(".")[0] in HARMLESS_MODULES | {"numpy"}:  # what stands in these does not change
            made.__dict__.update(
                (key, value)
                for key, value in vars(module).items()
                if not key.startswith("_") and key not in closed and not isinstance(value, ModuleType)
            )

        def look(attribute: str) -> Any:
            return self._look(module, attribute, closed)

        made.__dict__["__getattr__"] = look
        if name == "operator":
            made.__dict__["attrgetter"] = _checked(operator.attrgetter, self.refuse)
            made.__dict__["methodcaller"] = _checked(operator.methodcaller, self.refuse)
        elif name == "random":
            made.__dict__["Random"] = _Seeded
        elif name == "numpy.random":
            fresh, draw = itertools.count(), module.default_rng
            made.__dict__["default_rng"] = lambda seed=None: draw([next(fresh)] if seed is None else seed)
        return made

    def _look(self, module: ModuleType, attribute: str, closed: Collection[str]) -> Any:
        name = module.__name__
        if attribute in closed:
            self.refuse(f"{name}.{attribute}")
        value = getattr(module, attribute)
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] != name.partition(".")[0] or not permitted(value.__name__, self.fine):
                self.refuse(f"{name}.{attribute}")
            return self.of(value)
        if attribute.startswith("_") and attribute not in ("__version__", "__all__", "__file__", "__path__"):
            raise AttributeError(f"module {name!r} has no public attribute {attribute!r}")
        if self.twins.concern(name) and (reason := self.twins.reason(value)):
            self.refuse(f"{name}.{attribute}{reason}")
        return value


class _Seeded(random.Random):
    """``random.Random()``: a fresh one each time, and the same ones on every run."""

    fresh = itertools.count()

    def __init__(self, x: Any = None) -> None:
        super().__init__(next(self.fresh) if x is None else x)


def _checked(original: Callable[..., Any], refuse: Refuse) -> Callable[..., Any]:
    def made(*names: Any, **rest: Any) -> Any:
        for name in names[: 1 if original.__name__ == "methodcaller" else None]:
            for part in name.split(".") if type(name) is str else [""]:
                if not part or part in RISKY_ATTRIBUTES:
                    refuse(f"{original.__name__} {part!r}")
        return original(*names, **rest)

    return made


def guarded_builtins(refuse: Refuse) -> dict[str, Callable[..., Any]]:
    """``getattr``, ``hasattr``, ``setattr`` and ``delattr`` that look at the name which was computed."""

    def guard(name: str, closed: frozenset[str]) -> Callable[..., Any]:
        original, changes = getattr(builtins, name), name in ("setattr", "delattr")

        def made(holder: Any, attribute: Any, *rest: Any) -> Any:
            if type(attribute) is not str or attribute in closed:
                refuse(f"{name} {str(attribute)[:40]!r}")
            own = isinstance(holder, type) and holder.__module__.startswith("lab_")  # see course.labs.module_name
            if changes and isinstance(holder, (type, ModuleType)) and not own:
                refuse(f"{name} on {holder.__name__}")
            return original(holder, attribute, *rest)

        made.__name__ = name
        return made

    reading = dict.fromkeys(("getattr", "hasattr"), RISKY_ATTRIBUTES)
    writing = dict.fromkeys(("setattr", "delattr"), RISKY_ATTRIBUTES | FORGING)
    return {name: guard(name, closed) for name, closed in {**reading, **writing}.items()}


DOOR = "_course_grade_builtins"


def with_guarded_builtins(source: str, path: str) -> ast.Module:
    """The parsed file with one statement more, behind its docstring and its ``__future__`` imports: the guarded
    functions, imported from a module that only the import guard knows."""
    tree = ast.parse(source, path)
    at = 0
    for at, node in enumerate([*tree.body, None]):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and at == 0
        if not text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
    names = [ast.alias(name) for name in ("getattr", "hasattr", "setattr", "delattr")]
    line = ast.ImportFrom(module=DOOR, names=names, level=0, lineno=1, col_offset=0)
    tree.body.insert(at, line)
    return ast.fix_missing_locations(tree)
