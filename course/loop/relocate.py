"""Imports of former places of mini_vllm are put right in a text; everything else of it stays, to the character."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

from mini_vllm.moved import ROOT_NAME, Moves

FROM = re.compile(r"from(?:\s|\\)+([\w.]+)(?:\s|\\)+import\b")


@dataclass
class Rewritten:
    """A text after `rewrite`. ``changes`` say per statement what it was and what it is, ``notes`` what is left to do by
    hand."""

    text: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Alias:
    """A name that stands for a former module, the statements that bind it, and what was taken from it that is
    elsewhere now: names in the text, and the imports that bind them."""

    former: str
    now: str
    statements: list[ast.stmt] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


class _Text:
    """A source with the characters at which its nodes begin and end; edits are collected, and made at once."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = io.StringIO(source, newline="").readlines()  # as Python counts them: no form feeds
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.edits: dict[tuple[int, int], str] = {}

    def at(self, line: int, column: int) -> int:
        """Offset of ast's position, whose columns count UTF-8 bytes."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return self.starts[line - 1] + (
            column if text.isascii() else len(text.encode()[:column].decode(errors="ignore"))
        )

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def holds(self, node: ast.expr, chain: str) -> bool:
        """Whether ``chain`` stands where ``node`` is said to be: before Python 3.12 that is not so in every
        f-string."""
        start, end = self.span(node)
        return "".join(self.source[start:end].split()) == chain

    def add_below(self, statement: ast.stmt, more: list[str]) -> None:
        """Puts statements behind one: a line each where it has its line for itself."""
        start, end = self.span(statement)
        before = self.source[self.source.rfind("\n", 0, start) + 1 : start]
        rest = re.match(r"[^\r\n]*", self.source[end:])
        tail = rest.group() if rest else ""
        if before.strip() or tail.strip().partition("#")[0]:
            self.edits[end, end] = "".join(f"; {each}" for each in more)
        elif more:
            ending = "\r\n" if "\r\n" in self.source else "\n"
            self.edits[end + len(tail), end + len(tail)] = "".join(f"{ending}{before}{each}" for each in more)

    def edited(self) -> str:
        parts, done = [], 0
        for (start, end), new in sorted(self.edits.items()):
            parts += [self.source[done:start], new]
            done = end
        return "".join([*parts, self.source[done:]])


def rewrite(source: str, moves: Moves, public: bool = True, package: str = "", leaves: bool = False) -> Rewritten:
    """Imports of former places in ``source`` name the present ones.

    Args:
        source: Python; its line endings are kept.
        moves: the table.
        public: whether names are taken from `mini_vllm` itself where all of a statement can be.
        package: of the former module that this is, by which its relative imports are resolved; "" for none.
        leaves: whether the file leaves that package, so that no relative import may stay.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    text = _Text(source)
    nodes = sorted(
        (n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.Import, ast.ImportFrom, ast.Attribute))),
        key=lambda n: (n.lineno, n.col_offset, -(n.end_lineno or 0), -(n.end_col_offset or 0)),
    )
    made = Rewritten(source)
    aliases: dict[str, Alias] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            _from(node, text, moves, public, package if node.level else "", leaves, made.changes)
            _submodules(node, moves, aliases)
        elif isinstance(node, ast.Import):
            _import(node, text, moves, made.changes, aliases)
    taken = _identifiers(source) if aliases else set()
    inside = -1  # where the last chain that was put right ends; the shorter ones in it begin at the same place
    for node in nodes:
        if isinstance(node, ast.Attribute) and text.span(node)[0] >= inside and _attribute(node, text, moves, made):
            inside = text.span(node)[1]
        elif isinstance(node, ast.Attribute):
            _taken_from_alias(node, text, moves, aliases, taken, public, made)
    for alias in aliases.values():
        for statement in alias.statements:
            text.add_below(statement, list(alias.imports.values()))
    made.text = text.edited()
    return made


def _from(
    node: ast.ImportFrom, text: _Text, moves: Moves, public: bool, package: str, leaves: bool, changes: list[str]
) -> None:
    module = node.module or ""
    if node.level:
        parts = package.split(".") if package else []
        module = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
    if not module.startswith(ROOT_NAME):
        return
    found = moves.imports(module, [alias.name for alias in node.names], public)
    if not found and not (node.level and leaves):
        return
    found = found or {module: [(alias.name, alias.name) for alias in node.names]}
    new = _statements(node, found)
    start, end = text.span(node)
    head = FROM.match(text.source, start, end)
    if len(found) == 1 and head and all(old == now for old, now in next(iter(found.values()))):
        text.edits[head.span(1)] = next(iter(found))
    else:
        text.edits[start, end] = _joined(text, start, end, new)
    if not node.level:
        changes.append(f"line {node.lineno}: {ast.unparse(node)} -> {'; '.join(new)}")


def _statements(node: ast.ImportFrom, found: dict[str, list[tuple[str, str]]]) -> list[str]:
    """One import per module of ``found``; names that a star stands for, and names bound by `as`, stay so."""
    bound = {alias.name: alias.asname for alias in node.names}
    made = []
    for module, pairs in found.items():
        names = []
        for old, new in pairs:
            asname = bound.get(old) or (old if old != new else None)
            names.append(f"{new} as {asname}" if asname else new)
        made.append(f"from {module} import {', '.join(names)}")
    return made


def _joined(text: _Text, start: int, end: int, statements: list[str]) -> str:
    """Several statements in the place of one: a line each where it has its line for itself, comments with them."""
    before = text.source[text.source.rfind("\n", 0, start) + 1 : start]
    rest = re.match(r"[^\r\n]*", text.source[end:])
    tail = rest.group().strip() if rest else ""
    if tail and not tail.startswith("#"):
        return "; ".join(statements)
    inner = "".join(f"  {t.string}" for t in _tokens(text.source[start:end]) if t.type == tokenize.COMMENT)
    if before.strip():
        return "; ".join(statements) + inner
    ending = "\r\n" if "\r\n" in text.source else "\n"
    comment = inner + (f"  {tail}" if tail else "")
    return (comment + ending + before).join(statements) + inner


def _tokens(statement: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(statement).readline)
    except (tokenize.TokenError, IndentationError):
        return


def _submodules(node: ast.ImportFrom, moves: Moves, aliases: dict[str, Alias]) -> None:
    """Notes names that stand for a former module: `from mini_vllm import scheduler as s`."""
    for alias in node.names if not node.level else ():
        former = f"{node.module}.{alias.name}"
        if former in moves.modules:
            new, leaf = moves.place(node.module or "", alias.name)
            made = aliases.setdefault(alias.asname or alias.name, Alias(former, f"{new}.{leaf}"))
            made.statements.append(node)


def _import(node: ast.Import, text: _Text, moves: Moves, changes: list[str], aliases: dict[str, Alias]) -> None:
    parts, changed = [], False
    for alias in node.names:
        here = moves.file(alias.name) is not None
        new = alias.name if here else moves.modules.get(alias.name, alias.name)
        if alias.asname and alias.name in moves.modules:
            aliases.setdefault(alias.asname, Alias(alias.name, new)).statements.append(node)
        parts.append(f"{new} as {alias.asname}" if alias.asname else new)
        if new == alias.name:
            continue
        changed = True
        start, _ = text.span(alias)
        text.edits[start, start + len(alias.name)] = new
    if changed:
        changes.append(f"line {node.lineno}: {ast.unparse(node)} -> import {', '.join(parts)}")


def _attribute(node: ast.Attribute, text: _Text, moves: Moves, made: Rewritten) -> bool:
    """`mini_vllm.scheduler.Scheduler` and `mini_vllm.scheduler` name the present place; whether this is such a
    chain."""
    whole, base = _chain(node), _chain(node.value)
    if whole in moves.modules and moves.file(whole) is None:
        new = moves.modules[whole]
    elif base in moves.modules and whole not in moves.modules and not moves.stands(base, node.attr):
        at, name = moves.place(base, node.attr)
        public = moves.is_public(at, name)
        new = f"{ROOT_NAME}.{name}" if public else f"{at}.{name}"
        if not public and at != moves.modules[base]:
            made.notes.append(f"line {node.lineno}: {name} is in {at} now; import {at}")
    else:
        return False
    if text.holds(node, whole):
        text.edits[text.span(node)] = new
        made.changes.append(f"line {node.lineno}: {whole} -> {new}")
    else:
        made.notes.append(f"line {node.lineno}: {whole} is {new} now")
    return True


def _taken_from_alias(
    node: ast.Attribute,
    text: _Text,
    moves: Moves,
    aliases: dict[str, Alias],
    taken: set[str],
    public: bool,
    made: Rewritten,
) -> None:
    """`s.name`, where `s` is a module that `name` has left, becomes a name that is imported beside `s`."""
    if not isinstance(node.value, ast.Name) or node.value.id not in aliases:
        return
    alias = aliases[node.value.id]
    at, name = moves.place(alias.former, node.attr)
    if at == alias.now or moves.stands(alias.now, node.attr):
        return
    if not isinstance(node.ctx, ast.Load) or not text.holds(node, _chain(node)):
        made.notes.append(f"line {node.lineno}: {_chain(node)} is {name} of {at} now")
        return
    if node.attr not in alias.names:
        free = node.attr
        while free in taken:
            free = f"{node.value.id}_{free}"
        taken.add(free)
        alias.names[node.attr] = free
        wanted = ROOT_NAME if public and moves.is_public(at, name) else at
        alias.imports[node.attr] = f"from {wanted} import {name}" + (f" as {free}" if free != name else "")
    text.edits[text.span(node)] = alias.names[node.attr]
    what = alias.imports[node.attr]
    made.changes.append(f"line {node.lineno}: {_chain(node)} -> {alias.names[node.attr]} ({what})")


def _identifiers(source: str) -> set[str]:
    """Every name that a text uses for anything but an attribute."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found


def _chain(node: ast.expr) -> str:
    """``a.b.c`` of names joined by dots, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    base = _chain(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""
