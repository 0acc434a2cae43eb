"""Reads files of the pinned release: what each line defines, what it calls."""

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Name = tuple[str, ...]
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@dataclass
class PinnedFile:
    """``definitions_at`` and ``calls_at`` map a line to dotted names; both are empty where it is not Python."""

    path: Path
    lines: list[str]
    is_python: bool = False
    definitions_at: dict[int, list[tuple[Name, int]]] = field(default_factory=dict)

    @functools.cached_property
    def calls_at(self) -> dict[int, set[Name]]:
        """Found when it is asked for: most files are asked for definitions alone."""
        found: dict[int, set[Name]] = {}
        for node in ast.walk(ast.parse("\n".join(self.lines))) if self.is_python else ():
            if isinstance(node, ast.Call) and (name := _dotted(node.func)):
                for line in {node.lineno, node.func.end_lineno or node.lineno}:
                    found.setdefault(line, set()).add(name)
        return found

    @staticmethod
    def name(text: str) -> str | None:
        """``Request.num_tokens()`` -> ``Request.num_tokens``; None where the text is not a dotted name."""
        text = re.sub(r"\(.*\)$", "", text.strip(), flags=re.S).replace("::", ".").lstrip("@")
        return text if _NAME.fullmatch(text) else None

    def defines(self, name: str, line: int) -> int | None:
        """The last line of the definition of ``name`` that starts on ``line``; None where none does."""
        if not self.is_python:
            word = re.search(rf"(?<!\w){re.escape(name.split('.')[-1])}(?!\w)", self.lines[line - 1])
            return len(self.lines) if word else None
        ends = [end for defined, end in self.definitions_at.get(line, []) if _ends_with(defined, name)]
        return max(ends, default=None)

    def definitions(self, name: str) -> list[int]:
        """Lines on which ``name`` is defined."""
        return sorted(line for line, names in self.definitions_at.items() if any(_ends_with(n, name) for n, _ in names))

    def defined_on(self, line: int) -> Iterator[Name]:
        return (name for name, _ in self.definitions_at.get(line, []))

    def calls(self, name: str, line: int) -> bool:
        """Whether a call of ``name`` stands or begins on ``line``."""
        if not self.is_python:
            return re.search(rf"(?<!\w){re.escape(name.split('.')[-1])}\s*[(<]", self.lines[line - 1]) is not None
        return any(_ends_with(called, name) for called in self.calls_at.get(line, ()))

    def call_lines(self, name: str) -> list[int]:
        """Lines on which ``name`` is called."""
        return sorted(line for line, names in self.calls_at.items() if any(_ends_with(n, name) for n in names))

    def differs(self, first: int, last: int, text: str) -> str | None:
        """None where ``text`` is lines ``first`` to ``last`` (a common indent apart), else the first difference."""
        if not 1 <= first <= last <= len(self.lines):
            return f"lines {first}-{last}: the file has {len(self.lines)}"
        want = _dedented("\n".join(self.lines[first - 1 : last]))
        have = _dedented(text)
        for n, (a, b) in enumerate(zip(want, have, strict=False)):
            if a != b:
                return f"line {first + n} of the pinned file is {a.strip()!r}, the excerpt says {b.strip()!r}"
        return f"{first}-{last} is {len(want)} lines, the excerpt has {len(have)}" if len(want) != len(have) else None


def _dedented(text: str) -> list[str]:
    return [line.rstrip() for line in textwrap.dedent(text.expandtabs()).strip("\n").split("\n")]


def _ends_with(name: Name, want: str) -> bool:
    parts = tuple(want.split("."))
    return name[-len(parts) :] == parts


def _dotted(node: ast.expr) -> Name:
    """``self.attn.impl`` -> its parts; what is before a call or an index is left out."""
    if isinstance(node, ast.Name):
        return (node.id,)
    return (*_dotted(node.value), node.attr) if isinstance(node, ast.Attribute) else ()


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [leaf for target in node.targets for leaf in _leaves(target)]
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _leaves(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [leaf for element in target.elts for leaf in _leaves(element)]
    return [target]


class _Index:
    def __init__(self, file: PinnedFile) -> None:
        self.file = file
        self.scope: Name = ()
        self.owner: Name = ()

    def define(self, line: int, name: Name, end: int | None) -> None:
        self.file.definitions_at.setdefault(line, []).append((name, end or line))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.enter(node)
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in _targets(node):
                self.assign(target, node.end_lineno)
        self.inside(node)

    def inside(self, node: ast.AST) -> None:
        """The statements in a statement; no expression defines a name that is cited."""
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(node, name, ()):
                self.visit(child)

    def enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        saved = self.scope, self.owner
        self.scope = (*self.scope, node.name)
        if isinstance(node, ast.ClassDef):
            self.owner = self.scope
        self.define(node.lineno, self.scope, node.end_lineno)
        self.inside(node)
        self.scope, self.owner = saved

    def assign(self, target: ast.expr, end: int | None) -> None:
        name = _dotted(target)
        if not name:
            return
        self.define(target.lineno, (*self.scope, *name), end)
        if name[0] in ("self", "cls") and len(name) > 1:
            self.define(target.lineno, (*self.owner, *name[1:]), end)


@functools.lru_cache(maxsize=1024)
def open_pinned(path: Path) -> PinnedFile | None:
    """Reads and indexes a file of the pinned tree; None where there is none."""
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    file = PinnedFile(path, text.split("\n")[:-1] if text.endswith("\n") else text.split("\n"))
    if path.suffix in (".py", ".pyi"):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return file
        file.is_python = True
        _Index(file).visit(tree)
    return file
