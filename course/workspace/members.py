"""The parts of a Python file that can be compared and put into another: functions, classes, assignments, statements.

A part has a key ("Scheduler._clamp", "LIMIT"), the lines that it takes, and the text of these lines. What stands
between parts, blank lines and loose comments, belongs to none."""

import ast
import io
from collections.abc import Iterator
from dataclasses import dataclass

from course.labs import functions, stub_message

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Member:
    """One part.

    Attributes:
        key: dotted name; a statement that names nothing has its own text.
        kind: "function", "class", "assignment", "import", "docstring" or "statement".
        node: its tree. parent: key of the class around it, "" at the top level.
        first, last: its lines, counted from 0, decorators included; `last` is the line after it.
        text: these lines; above: the comment lines directly above.
    """

    key: str
    kind: str
    node: ast.stmt
    parent: str
    first: int
    last: int
    text: str
    above: str

    @property
    def stub(self) -> str | None:
        """What is to be written, where this is a function that is not written."""
        return stub_message(self.node) if isinstance(self.node, Function) else None

    @property
    def names(self) -> list[str]:
        """What it binds."""
        return [self.key.rpartition(".")[2]] if self.kind in ("function", "class") else list(bindings(self.node))

    @property
    def head(self) -> str:
        """Of a class: its lines before the first one of its body."""
        first = self.node.body[0] if isinstance(self.node, ast.ClassDef) else self.node
        line = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
        return "".join(lines_of(self.text)[: max(line - 1 - self.first, 1)]).partition("\n\n")[0].strip()

    def around(self, engine: str) -> bool:
        """Whether a function that is not written has decorators or notes that the engine's text of it has not."""
        assert isinstance(self.node, Function)
        todo, lines = self.node.body[-1], lines_of(self.text)
        start, end = todo.lineno - 1 - self.first, (todo.end_lineno or 0) - self.first
        tail = lines[end - 1].encode()[todo.end_col_offset :].strip()
        known = {line.strip() for line in lines_of(engine)}
        return bool(tail) or any(line.strip() not in known for line in [*lines[:start], *lines[end:]])


def lines_of(source: str) -> list[str]:
    """Lines as Python counts them: a form feed ends none."""
    return io.StringIO(source, newline="").readlines()


def members(source: str) -> dict[str, Member]:
    """All parts of a file by key, in order; those of classes too. Raises SyntaxError."""
    tree = ast.parse(source)
    names = {id(node): key for key, node in functions(tree)}
    found: dict[str, Member] = {}
    for each in _members(tree.body, "", lines_of(source), names):
        key = each.key
        while key in found:  # an overload, a name that is assigned twice
            key += "'"
        found[key] = each
    return found


def _members(body: list[ast.stmt], parent: str, lines: list[str], names: dict[int, str]) -> Iterator[Member]:
    prefix = f"{parent}." if parent else ""
    previous: ast.stmt | None = None
    for i, node in enumerate(body):
        documented = isinstance(previous, (ast.Assign, ast.AnnAssign)) and _is_text(node)
        previous = node
        if documented:
            continue
        below = body[i + 1] if i + 1 < len(body) else node
        last = below if isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_text(below) else node
        kind, name = _kind(node, i)
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        text = "".join(lines[first : last.end_lineno])
        key = names.get(id(node)) or prefix + (name or text.strip())
        yield Member(key, kind, node, parent, first, last.end_lineno or 0, text, _comments(lines, first))
        if isinstance(node, ast.ClassDef):
            yield from _members(node.body, prefix + node.name, lines, names)


def _kind(node: ast.stmt, place: int) -> tuple[str, str]:
    """Kind and name; the name of a statement is empty."""
    if isinstance(node, Function):
        return "function", node.name
    if isinstance(node, ast.ClassDef):
        return "class", node.name
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return "import", ""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return "assignment", ", ".join(bindings(node)) or ast.unparse(node)
    return ("docstring", "docstring") if place == 0 and _is_text(node) else ("statement", "")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _comments(lines: list[str], first: int) -> str:
    start = first
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return "".join(lines[start:first])


def bindings(node: ast.AST) -> Iterator[str]:
    """Names that a statement binds where it stands, in the order in which they are met."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for child in ast.iter_child_nodes(node):
            yield from bindings(child)


def bound(source: str) -> set[str]:
    """Names that a file binds at its top level, in `if` and `try` too."""
    return {name for node in ast.parse(source).body for name in bindings(node)}


def used(node: ast.AST) -> set[str]:
    """Names that a part reads, its own local ones among them."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@dataclass(frozen=True)
class Imported:
    """One name that a file imports: the statement that gives it, and whether only type checkers see it."""

    name: str
    statement: str
    typing: bool


def imported(source: str) -> list[Imported]:
    """Imports at the top level and for type checkers; not those inside another `if` or a `try`. A star is "*"."""
    found = []
    for node in ast.parse(source).body:
        typing = is_typing(node)
        for each in node.body if isinstance(node, ast.If) and typing else [node]:
            for alias in each.names if isinstance(each, (ast.Import, ast.ImportFrom)) else ():
                if isinstance(each, ast.ImportFrom) and each.module == "__future__":
                    continue
                text = f"import {ast.unparse(alias)}"
                if isinstance(each, ast.ImportFrom):
                    text = f"from {'.' * each.level}{each.module or ''} {text}"
                found.append(Imported(alias.asname or alias.name.partition(".")[0], text, typing))
    return found


def is_typing(node: ast.stmt) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def with_member(source: str, key: str, text: str) -> str:
    """``source`` with the part called ``key`` replaced by the lines ``text``."""
    old = members(source)[key]
    lines = lines_of(source)
    return "".join([*lines[: old.first], _ended(text), *lines[old.last :]])


def with_new(source: str, member: Member, after: str) -> str:
    """``source`` with a new part behind ``after``; "": behind the imports, or first in its class."""
    have, lines = members(source), lines_of(source)
    if after:
        place, big = have[after].last, member.kind in ("function", "class") or have[after].kind in ("function", "class")
    elif member.parent:
        body = [each for each in have.values() if each.parent == member.parent]
        documented = bool(body) and body[0].kind == "docstring"
        place, big = (body[0].last if documented else body[0].first), documented
    else:
        place, big = header(source), True
    gap = "\n" * (1 if member.parent else 2 if after else 1) if big else ""
    if lines and place and not lines[place - 1].endswith("\n"):
        lines[place - 1] += "\n"
    return "".join([*lines[:place], gap, member.above, _ended(member.text), *lines[place:]])


def header(source: str) -> int:
    """The line after the imports of a file, or after its docstring."""
    tops = [each for each in members(source).values() if not each.parent]
    found = [each.last for each in tops if each.kind == "import" or is_typing(each.node)]
    return max(found or [each.last for each in tops if each.kind == "docstring"] or [0])


def with_import(source: str, want: Imported) -> str:
    """``source`` with one more import, after those that it has."""
    text = f"{want.statement}\n"
    if want.typing:
        known = "TYPE_CHECKING" in bound(source)
        text = ("" if known else "from typing import TYPE_CHECKING\n") + f"\nif TYPE_CHECKING:\n    {text}"
    tops = [each for each in members(source).values() if not each.parent and each.kind in ("docstring", "import")]
    place = header(source) if want.typing else max([each.last for each in tops], default=0)
    lines = lines_of(source)
    return "".join([*lines[:place], text, *lines[place:]])


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"
