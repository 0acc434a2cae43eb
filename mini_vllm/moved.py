"""Where the files of mini_vllm stood before they moved, and where they stand now.

`moved.toml` is the one table. It is read when an import fails, so that the error names the new place, and by `course
update` and `course build`, which move a learner's imports and functions along. `import mini_vllm` does not load it.
"""

from __future__ import annotations

import ast
import dis
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parent
ROOT_NAME = "mini_vllm"


class MovedError(ImportError):
    """Something is imported from its former place; the text names the new one.

    Not a ModuleNotFoundError: `from mini_vllm import scheduler` would swallow that one with its text.
    """


@dataclass(frozen=True)
class Moves:
    """The table, beside the package in which the new places are looked up. All module names begin with `mini_vllm`.

    Attributes:
        package: folder of the package.
        modules: former module -> present one.
        names: (former module, name) -> present module, for what went elsewhere than its file.
        public: name -> module, for what can be imported from `mini_vllm` itself.
    """

    package: Path
    modules: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[tuple[str, str], str] = field(default_factory=dict)
    public: Mapping[str, str] = field(default_factory=dict)

    def file(self, module: str) -> Path | None:
        """The file of a module as the package is now; None where there is none."""
        path = self.package.parent.joinpath(*module.split("."))
        found = (path.with_suffix(".py"), path / "__init__.py")
        return next((file for file in found if file.is_file()), None)

    def place(self, module: str, name: str) -> tuple[str, str]:
        """Present module and name of what `from module import name` meant; as asked where that still works, or where
        the table does not know it."""
        if self.stands(module, name):
            return module, name
        target = self.names.get((module, name), "")
        if target and self.file(target):
            return target, name
        if whole := self.modules.get(f"{module}.{name}"):
            parent, _, leaf = whole.rpartition(".")
            return parent, leaf
        return (module, name) if self.gone(module, name) else (self.modules.get(module, module), name)

    def present(self, module: str) -> str:
        """Where a former module is; any other, or one whose name a file has now, is where it is."""
        return module if self.file(module) is not None else self.modules.get(module, module)

    def gone(self, module: str, name: str) -> bool:
        """Whether a former module's `name` is nowhere that the table knows."""
        own = self.modules.get(module, "")
        known = name == "*" or (module, name) in self.names or f"{module}.{name}" in self.modules
        if not own or known or self.stands(module, name):
            return False
        return self.file(own) is not None and not self.stands(own, name)

    def stands(self, module: str, name: str) -> bool:
        """Whether `from module import name` finds something in the package as it is now."""
        file = self.file(module)
        if file is None:
            return False
        if module == ROOT_NAME and name in self.public:
            return True
        return name in bound(file) or (file.name == "__init__.py" and self.file(f"{module}.{name}") is not None)

    def namesake(self, name: str) -> str:
        """The one module of the package that defines `name` at its top level; "" for none or several."""
        line = re.compile(rf"^(?:class|def|async def) {re.escape(name)}\b|^{re.escape(name)}\b[^=\n]*=", re.MULTILINE)
        files = (
            p for p in self.package.rglob("*.py") if not {"tests", "__pycache__"} & {*p.relative_to(self.package).parts}
        )
        found = [path for path in files if line.search(path.read_text(encoding="utf-8"))]
        parts = found[0].relative_to(self.package.parent).with_suffix("").parts if len(found) == 1 else ()
        return ".".join(parts).removesuffix(".__init__")

    def is_public(self, module: str, name: str) -> bool:
        """Whether `from mini_vllm import name` gives what stands in `module`."""
        if name not in self.public or self.public[name] == module:
            return name in self.public
        file = self.file(module)  # it may have another thing of the same name, or a submodule, or one that it imports
        return file is None or (name not in defined(file) and self.file(f"{module}.{name}") is None)

    def imports(self, module: str, names: Iterable[str], public: bool = True) -> dict[str, list[tuple[str, str]]]:
        """Present module -> (former name, present name) in the order given: the imports that `from module import
        names` has become. One entry, `mini_vllm`, where every name is public and `public` is asked for; empty where
        nothing of it moved."""
        names = list(names)
        if names == ["*"]:
            return self._star(module)
        places = [self.place(module, name) for name in names]
        if all(place == (module, name) for place, name in zip(places, names, strict=True)):
            return {}
        same = all(new == name for (_, new), name in zip(places, names, strict=True))
        if public and same and all(self.is_public(at, new) for at, new in places):
            return {ROOT_NAME: [(name, name) for name in names]}
        found: dict[str, list[tuple[str, str]]] = {}
        for (at, new), name in zip(places, names, strict=True):
            found.setdefault(at, []).append((name, new))
        return found

    def _star(self, module: str) -> dict[str, list[tuple[str, str]]]:
        if module not in self.modules or self.file(module) is not None:
            return {}
        return {at: [("*", "*")] for at in self.places(module)}

    def places(self, module: str) -> list[str]:
        """Present modules that hold what the former `module` held, its own first; `[module]` where the table does
        not know it."""
        own = self.modules.get(module, module)
        others = sorted({at for (former, _), at in self.names.items() if former == module} - {own})
        return [own, *others]


def read(package: Path = PACKAGE) -> Moves:
    """The table of a package; empty where it has none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    path = package / "moved.toml"
    if not path.is_file():
        return Moves(package)
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    modules = {f"{ROOT_NAME}.{old}": f"{ROOT_NAME}.{new}" for old, new in table["modules"].items()}
    names = {}
    for old, new in table["names"].items():
        module, _, name = old.partition(":")
        names[f"{ROOT_NAME}.{module}", name] = f"{ROOT_NAME}.{new}"
    return Moves(package, modules, names, _public(package / "__init__.py"))


def _public(init: Path) -> dict[str, str]:
    """Name -> module out of `_PUBLIC`, without importing the package: another version of it may be loaded."""
    for node in ast.parse(init.read_text(encoding="utf-8")).body if init.is_file() else ():
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        value = getattr(node, "value", None)
        if value is not None and any(isinstance(t, ast.Name) and t.id == "_PUBLIC" for t in targets):
            return {name: module for module, names in ast.literal_eval(value).items() for name in names}
    return {}


def defined(file: Path) -> frozenset[str]:
    """Names that a file defines at its top level: functions, classes, assignments."""
    return _names(file, file.stat().st_mtime_ns)[0]


def bound(file: Path) -> frozenset[str]:
    """Names that a file defines or imports at its top level, in `if` and `try` too."""
    return _names(file, file.stat().st_mtime_ns)[1]


@functools.lru_cache(maxsize=256)
def _names(file: Path, changed: int) -> tuple[frozenset[str], frozenset[str]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(_bindings(tree.body, imports=False)), frozenset(_bindings(tree.body))


def _bindings(body: list[ast.stmt], imports: bool = True) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if imports:
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _bindings(node.orelse, imports)
        elif isinstance(node, (ast.If, ast.Try)):
            for part in (node.body, node.orelse, *(h.body for h in getattr(node, "handlers", []))):
                yield from _bindings(part, imports)
        else:
            stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            yield from (each.id for each in stored if isinstance(each.ctx, ast.Store))


def statement(moves: Moves, module: str, names: Iterable[str] = ()) -> str:
    """The import that has the same effect today, on one line; "" where nothing of it moved."""
    names = list(names)
    if not names:
        whole = moves.modules.get(module, "") if moves.file(module) is None else ""
        return f"import {whole}" if whole else ""
    parts = (
        f"from {at} import {', '.join(new if new == old else f'{new} as {old}' for old, new in pairs)}"
        for at, pairs in moves.imports(module, names).items()
    )
    return "; ".join(parts)


def sentence(moves: Moves, module: str, names: Iterable[str] = ()) -> str:
    """Where it is now and what to do, in one sentence; "" where nothing of it moved."""
    names = list(names)
    where = moves.modules.get(module, "") if moves.file(module) is None else ""
    if lost := [name for name in names if moves.gone(module, name)]:
        rest = statement(moves, module, [name for name in names if name not in lost]) if len(lost) < len(names) else ""
        return lacking(moves, module, lost) + (f"; for the rest write `{rest}`" if rest else "")
    new = statement(moves, module, names)
    if not new:
        return ""
    if where:
        what = f"{module} is now {where}"
    else:
        moved = [(name, moves.place(module, name)) for name in names if not moves.stands(module, name)]
        what = ", ".join(f"{name} of {module} is now in {at}" for name, (at, _) in moved)
    return f"{what}; write `{new}`, or let `course update` rewrite your file"


def lacking(moves: Moves, module: str, names: list[str]) -> str:
    """That names of a former module are nowhere, and who has others of that name."""
    now = f"{module} is now {moves.modules[module]}, which" if moves.file(module) is None else module
    here = [f"{name} in {at}" for name in names for at in [moves.namesake(name)] if at]
    return f"{now} has no {', no '.join(names)}" + (f" (see {', '.join(here)})" if here else "")


def refuse(module: str) -> None:
    """Raises :class:`MovedError` where a module that was not found is a former one; the last finder of `sys.meta_path`
    calls it."""
    moves = read()
    if module in moves.modules:
        raise MovedError(sentence(moves, *_asked(module, moves)) or sentence(moves, module), name=module)


def missing(module: str, name: str) -> ImportError | AttributeError:
    """What the `__getattr__` of a file raises that has lost names; the text names the new place of `name`.

    An ImportError inside `from module import name`, which would swallow the text of any other; elsewhere an
    AttributeError, so that `hasattr` and submodules go on as without this.
    """
    plain = AttributeError(f"module {module!r} has no attribute {name!r}")
    if name.startswith("__"):  # asked for by every import of a name: not worth reading the table
        return plain
    moves = read()
    at, new = moves.place(module, name)
    known = moves.stands(at, new) if at != module else moves.gone(module, name) and moves.namesake(name)
    if not known:
        return plain
    frame = sys._getframe(2)
    said = sentence(moves, module, [name])
    if any(
        each.offset == frame.f_lasti and each.opname == "IMPORT_FROM" for each in dis.get_instructions(frame.f_code)
    ):
        return MovedError(said, name=module)
    return AttributeError(said)


def explain(error: ImportError) -> str:
    """One sentence for an import that failed because something moved, also out of a file that still stands; "" for
    any other."""
    if isinstance(error, MovedError):
        return str(error)
    head, _, rest = str(error).partition("cannot import name '")
    if head or not rest or not (error.name or "").startswith(f"{ROOT_NAME}."):
        return ""
    return sentence(read(), error.name or "", [rest.partition("'")[0]])


def _asked(module: str, moves: Moves) -> tuple[str, tuple[str, ...]]:
    """What the import statement that is being executed asks for: (module, names); names are () where it names none,
    or where that cannot be seen."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for target, names in _executing(frame):
            if target == module or (target.startswith(f"{module}.") and target in moves.modules):
                return target, names
            if any(f"{target}.{name}" == module for name in names):
                return target, tuple(name for name in names if f"{target}.{name}" in moves.modules)
        frame = frame.f_back
    return module, ()


def _executing(frame: FrameType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The import statement at which a frame stands, if it is one: the list of names lies on the stack, loaded just
    before."""
    before = None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti:
            if instruction.opname == "IMPORT_NAME":
                names = before.argval if before is not None and isinstance(before.argval, tuple) else ()
                yield instruction.argval, names
            return
        before = instruction
