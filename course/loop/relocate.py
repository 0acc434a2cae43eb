"""Imports of former places of mini_vllm are put right in a text; everything else of it stays, to the character."""

import ast
import io
import re
from dataclasses import dataclass, field

from course.loop.aliases import Alias, Aliases, chain
from mini_vllm.moved import ROOT_NAME, Moves, lacking

FROM = re.compile(r"from(?:\s|\\)+([\w.]+)(?:\s|\\)+import\b")


@dataclass
class Rewritten:
    """``changes`` say per statement what it was and what it is, ``notes`` what is left to do by hand."""

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
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def holds(self, node: ast.expr, chain: str) -> bool:
        """Whether ``chain`` stands at ``node``: not so in every f-string before Python 3.12."""
        start, end = self.span(node)
        return "".join(self.source[start:end].split()) == chain

    def around(self, start: int, end: int) -> tuple[str, str, str]:
        """What stands before and behind a statement in its lines, and how lines end."""
        before = self.source[self.source.rfind("\n", 0, start) + 1 : start]
        return before, re.split(r"[\r\n]", self.source[end:], maxsplit=1)[0], "\r\n" if "\r\n" in self.source else "\n"

    def add_below(self, statement: ast.stmt, more: list[str]) -> None:
        """Puts statements behind one: a line each where it has its line for itself."""
        start, end = self.span(statement)
        before, tail, ending = self.around(start, end)
        if before.strip() or tail.strip().partition("#")[0]:
            self.edits[end, end] = "".join(f"; {each}" for each in more)
        elif more:
            self.edits[end + len(tail), end + len(tail)] = "".join(f"{ending}{before}{each}" for each in more)

    def edited(self) -> str:
        parts, done = [], 0
        for (start, end), new in sorted(self.edits.items()):
            parts += [self.source[done:start], new]
            done = end
        return "".join([*parts, self.source[done:]])


def rewrite(source: str, moves: Moves, public: bool = True, package: str = "", leaves: bool = False) -> Rewritten:
    """Imports of former places in ``source`` name the present ones. ``public``: names are taken from `mini_vllm`
    itself where all of a statement can be. ``package``: of the former module that this is, by which its relative
    imports are resolved; they may not stay where the file ``leaves`` it. Raises SyntaxError."""
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
        if not isinstance(node, ast.Attribute) or text.span(node)[0] < inside:
            continue
        if _attribute(node, text, moves, aliases, imported, public, made):
            inside = text.span(node)[1]
    for alias in aliases.values():
        for statement in alias.statements if alias.imports else ():
            text.add_below(statement, list(dict.fromkeys(alias.imports.values())))
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
    line = f"line {node.lineno}"
    made.notes += [f"{line}: {lacking(moves, module, [name])}" for name in names if moves.gone(module, name)]
    if names == ["*"] and module in moves.modules and moves.file(module) is not None:
        made.notes.append(f"{line}: not all that {module} had is there now: name what you need in place of *")
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
        made.changes.append(f"{line}: {ast.unparse(node)} -> {'; '.join(new)}")


def _statements(node: ast.ImportFrom, found: dict[str, list[tuple[str, str]]]) -> list[str]:
    """One import per module of ``found``; names that a star stands for, and names bound by `as`, stay so."""
    bound = {alias.name: alias.asname for alias in node.names}

    def named(old: str, new: str) -> str:
        asname = bound.get(old) or (old if old != new else None)
        return f"{new} as {asname}" if asname else new

    return [f"from {at} import {', '.join(named(*pair) for pair in pairs)}" for at, pairs in found.items()]


def _joined(text: _Text, start: int, end: int, statements: list[str]) -> str:
    """Several statements in the place of one: a line each where it has its line for itself, comments with them."""
    before, tail, ending = text.around(start, end)
    tail = tail.strip()
    if tail and not tail.startswith("#"):
        return "; ".join(statements)
    inner = "".join(f"  {comment}" for comment in re.findall(r"#[^\r\n]*", text.source[start:end]))
    if before.strip():
        return "; ".join(statements) + inner
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


def _attribute(
    node: ast.Attribute, text: _Text, moves: Moves, aliases: Aliases, imported: set[str], public: bool, made: Rewritten
) -> bool:
    """A chain of names that ends in something that is elsewhere now is rewritten where it is sure what it means, and
    noted where it is not; whether it was such a chain."""
    said, line, loaded = chain(node), f"line {node.lineno}", isinstance(node.ctx, ast.Load)
    head, _, rest = said.partition(".")
    if head not in aliases:
        return False
    alias, sure = aliases[head], aliases.is_sure(head, node)
    module, _, name = f"{alias.former}.{rest}".rpartition(".")
    former = f"{module}.{name}" in moves.modules
    if moves.file(f"{module}.{name}") is not None if former else module not in moves.modules or name.startswith("__"):
        return False
    at, new = moves.place(module, name)
    stands = module == alias.former and moves.stands(alias.now, name)
    if (at, new) == (module, name) or (not former and (stands or (at, new) == (alias.now, name))):
        if sure and loaded and moves.gone(module, name):
            made.notes.append(f"{line}, {said}: {lacking(moves, module, [name])}")
        return False
    if not sure or not text.holds(node, said) or (alias.former != ROOT_NAME and not loaded):
        doubt = "" if sure else f", if {head} is that of mini_vllm here"
        made.notes.append(f"{line}: {said} is {new} of {at} now{doubt}")
        return True
    if alias.former != ROOT_NAME:
        shown = _beside(said, at, new, alias, moves, aliases.taken, public)
    elif moves.is_public(at, new):
        shown = f"{head}.{new}"
    else:
        shown, needed = f"{head}{at.removeprefix(ROOT_NAME)}.{new}", f"{at}.{new}" if former else at
        if not any(f"{each}.".startswith(f"{needed}.") for each in imported):
            alias.imports[said] = f"import {needed}"
    text.edits[text.span(node)] = shown
    made.changes.append(f"{line}: {said} -> {shown}" + (f" ({alias.imports[said]})" if said in alias.imports else ""))
    return True


def _beside(said: str, at: str, new: str, alias: Alias, moves: Moves, taken: set[str], public: bool) -> str:
    """`s.name`, where `s` is a module that `name` has left, becomes a name that is imported beside `s`."""
    if said not in alias.names:
        free = said.rpartition(".")[2]
        while free in taken:
            free = f"{said.partition('.')[0]}_{free}"
        taken.add(free)
        alias.names[said] = free
        wanted = ROOT_NAME if public and moves.is_public(at, new) else at
        alias.imports[said] = f"from {wanted} import {new}" + (f" as {free}" if free != new else "")
    return alias.names[said]
