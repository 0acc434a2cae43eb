"""Imports of former places of mini_vllm are put right in a text; everything else of it stays, to the character."""

from __future__ import annotations

import ast
import io
import re
from dataclasses import dataclass, field

from course.loop.aliases import Alias, Aliases, chain
from mini_vllm.moved import ROOT_NAME, Moves, lacking

FROM = re.compile(r"from(?:\s|\\)+([\w.]+)(?:\s|\\)+import\b")


@dataclass
class Rewritten:
    """A text after `rewrite`. ``changes`` say per statement what it was and what it is, ``notes`` what is left to do by
    hand."""

    text: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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
    text, tree = _Text(source), ast.parse(source)
    nodes = sorted(
        (n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom, ast.Attribute))),
        key=lambda n: (n.lineno, n.col_offset, -(n.end_lineno or 0), -(n.end_col_offset or 0)),
    )
    made, aliases, imported = Rewritten(source), Aliases(tree, moves), set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            _from(node, text, moves, public, package if node.level else "", leaves, made)
        elif isinstance(node, ast.Import):
            imported |= _import(node, text, moves, made)
    inside = -1  # where the last chain that was put right ends; the shorter ones in it begin at the same place
    for node in nodes:
        if isinstance(node, ast.Attribute) and text.span(node)[0] >= inside:
            use = _use(node, moves, aliases)
            if use and _put_right(use, text, moves, aliases, imported, public, made):
                inside = text.span(node)[1]
    for alias in aliases.values():
        for statement in alias.statements if alias.imports else ():
            text.add_below(statement, list(alias.imports.values()))
    made.text = text.edited()
    return made


def _from(
    node: ast.ImportFrom, text: _Text, moves: Moves, public: bool, package: str, leaves: bool, made: Rewritten
) -> None:
    module = node.module or ""
    if node.level:
        parts = package.split(".") if package else []
        module = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
    if not module.startswith(ROOT_NAME):
        return
    names = [alias.name for alias in node.names]
    made.notes += [
        f"line {node.lineno}: {lacking(moves, module, [name])}" for name in names if moves.gone(module, name)
    ]
    if names == ["*"] and module in moves.modules and moves.file(module) is not None:
        made.notes.append(
            f"line {node.lineno}: not all that {module} had is there now: name what you need in place of *"
        )
    found = moves.imports(module, names, public)
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
        made.changes.append(f"line {node.lineno}: {ast.unparse(node)} -> {'; '.join(new)}")


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
    inner = "".join(f"  {comment}" for comment in re.findall(r"#[^\r\n]*", text.source[start:end]))
    if before.strip():
        return "; ".join(statements) + inner
    ending = "\r\n" if "\r\n" in text.source else "\n"
    comment = inner + (f"  {tail}" if tail else "")
    return (comment + ending + before).join(statements) + inner


def _import(node: ast.Import, text: _Text, moves: Moves, made: Rewritten) -> set[str]:
    """Puts `import mini_vllm.scheduler` right; the modules that the statement imports now."""
    parts, changed, names = [], False, set()
    for alias in node.names:
        new = moves.present(alias.name)
        parts.append(f"{new} as {alias.asname}" if alias.asname else new)
        names |= set() if alias.asname else {new}
        if new == alias.name:
            continue
        start, end = text.span(alias)
        old = re.compile(r"(?:\s|\\)*\.(?:\s|\\)*".join(alias.name.split("."))).match(text.source, start, end)
        if old is None:
            made.notes.append(f"line {node.lineno}: {alias.name} is {new} now")
            continue
        changed = True
        text.edits[old.span()] = new
    if changed:
        made.changes.append(f"line {node.lineno}: {ast.unparse(node)} -> import {', '.join(parts)}")
    return names


@dataclass(frozen=True)
class _Use:
    """`head.….attr` in a text, which was ``name`` of ``module`` or that submodule, and is ``new`` of ``at``."""

    node: ast.Attribute
    head: str
    module: str
    at: str
    new: str
    said: str


def _use(node: ast.Attribute, moves: Moves, aliases: Aliases) -> _Use | None:
    """What a chain of names means, where that is elsewhere now, or nowhere."""
    head, _, rest = chain(node).partition(".")
    if head not in aliases:
        return None
    alias = aliases[head]
    module, _, name = f"{alias.former}.{rest}".rpartition(".")
    whole = f"{module}.{name}"
    if whole in moves.modules and moves.file(whole) is not None:
        return None
    if whole not in moves.modules and (module not in moves.modules or name.startswith("__")):
        return None
    at, new = moves.place(module, name)
    has = whole not in moves.modules and module == alias.former and moves.stands(alias.now, name)
    stays = has or (at, new) == (module, name) or ((at, new) == (alias.now, name) and whole not in moves.modules)
    if stays and not (moves.gone(module, name) and module == alias.former):
        return None
    return _Use(node, head, module, at, new, chain(node))


def _put_right(
    use: _Use, text: _Text, moves: Moves, aliases: Aliases, imported: set[str], public: bool, made: Rewritten
) -> bool:
    """Rewrites a use where it is sure what it means, and notes it where it is not; whether it was rewritten."""
    node, alias, line = use.node, aliases[use.head], f"line {use.node.lineno}"
    sure = aliases.is_sure(use.head, node)
    if use.at == use.module:
        if sure and isinstance(node.ctx, ast.Load):
            made.notes.append(f"{line}, {use.said}: {lacking(moves, use.module, [node.attr])}")
        return False
    if not sure or not text.holds(node, use.said) or (alias.former != ROOT_NAME and not isinstance(node.ctx, ast.Load)):
        doubt = "" if sure else f", if {use.head} is that of mini_vllm here"
        made.notes.append(f"{line}: {use.said} is {use.new} of {use.at} now{doubt}")
        return True
    if alias.former == ROOT_NAME:
        shown = _below_root(use, moves, imported, made)
    else:
        shown = _beside(use, alias, moves, aliases.taken, public)
    text.edits[text.span(node)] = shown
    how = f" ({alias.imports[use.said]})" if use.said in alias.imports else ""
    made.changes.append(f"{line}: {use.said} -> {shown}{how}")
    return True


def _below_root(use: _Use, moves: Moves, imported: set[str], made: Rewritten) -> str:
    """`mini_vllm.scheduler.Scheduler` and `mini_vllm.scheduler` name the present place."""
    if moves.is_public(use.at, use.new):
        return f"{use.head}.{use.new}"
    whole = f"{use.at}.{use.new}"
    needed = whole if f"{use.module}.{use.node.attr}" in moves.modules else use.at
    if not any(each == needed or each.startswith(f"{needed}.") for each in imported):
        made.notes.append(f"line {use.node.lineno}: {use.new} is in {use.at} now; import {needed}")
    return use.head + whole.removeprefix(ROOT_NAME)


def _beside(use: _Use, alias: Alias, moves: Moves, taken: set[str], public: bool) -> str:
    """`s.name`, where `s` is a module that `name` has left, becomes a name that is imported beside `s`."""
    if use.said not in alias.names:
        free = use.node.attr
        while free in taken:
            free = f"{use.head}_{free}"
        taken.add(free)
        alias.names[use.said] = free
        wanted = ROOT_NAME if public and moves.is_public(use.at, use.new) else use.at
        alias.imports[use.said] = f"from {wanted} import {use.new}" + (f" as {free}" if free != use.new else "")
    return alias.names[use.said]
