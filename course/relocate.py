"""A learner's imports of former places of mini_vllm are put right; everything else of her file stays byte for byte.

`rewrite` works on a text, `starters` on every ``starter.py`` of a clone: a copy first, then the new text, and a lab
that was done stays done.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course import held, outcomes
from course.labs import ROOT, lab_folders, lab_of
from course.record import keep, write_json
from mini_vllm.moved import ROOT_NAME, Moves, read

DOTTED = re.compile(rf"\b{ROOT_NAME}(?:\.\w+)*")
FROM = re.compile(r"from(?:\s|\\)+([\w.]+)(?:\s|\\)+import\b")

LONG = 100_000  # bytes


@dataclass
class Rewritten:
    """A text after `rewrite`. ``changes`` say per statement what it was and what it is, ``notes`` what is left to do by
    hand."""

    text: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Starter:
    """What happened to one file: ``copy`` is the file as it was; ``fault`` says why it was left alone."""

    name: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    copy: Path | None = None
    fault: str = ""


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
        return self.starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

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
    aliases: dict[str, tuple[str, str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            _from(node, text, moves, public, package if node.level else "", leaves, made.changes)
            _submodules(node, moves, aliases)
        elif isinstance(node, ast.Import):
            _import(node, text, moves, made.changes, aliases)
    inside = -1  # where the last chain that was put right ends; the shorter ones in it begin at the same place
    for node in nodes:
        if isinstance(node, ast.Attribute) and text.span(node)[0] >= inside and _attribute(node, text, moves, made):
            inside = text.span(node)[1]
        elif isinstance(node, ast.Attribute):
            _taken_from_alias(node, moves, aliases, made.notes)
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


def _submodules(node: ast.ImportFrom, moves: Moves, aliases: dict[str, tuple[str, str]]) -> None:
    """Notes names that stand for a former module: `from mini_vllm import scheduler as s`."""
    for alias in node.names if not node.level else ():
        former = f"{node.module}.{alias.name}"
        if former in moves.modules:
            new, leaf = moves.place(node.module or "", alias.name)
            aliases[alias.asname or alias.name] = former, f"{new}.{leaf}"


def _import(
    node: ast.Import, text: _Text, moves: Moves, changes: list[str], aliases: dict[str, tuple[str, str]]
) -> None:
    parts, changed = [], False
    for alias in node.names:
        here = moves.file(alias.name) is not None
        new = alias.name if here else moves.modules.get(alias.name, alias.name)
        if alias.asname and alias.name in moves.modules:
            aliases[alias.asname] = alias.name, new
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
    text.edits[text.span(node)] = new
    made.changes.append(f"line {node.lineno}: {whole} -> {new}")
    return True


def _taken_from_alias(node: ast.Attribute, moves: Moves, aliases: dict[str, tuple[str, str]], notes: list[str]) -> None:
    """Notes `s.name` where `s` is a module that `name` has left."""
    if not isinstance(node.value, ast.Name) or node.value.id not in aliases:
        return
    former, new = aliases[node.value.id]
    at, name = moves.place(former, node.attr)
    if at != new and not moves.stands(new, node.attr):
        wanted = ROOT_NAME if moves.is_public(at, name) else at
        notes.append(f"line {node.lineno}: write {name} for {node.value.id}.{node.attr}; from {wanted} import {name}")


def _chain(node: ast.expr) -> str:
    """``a.b.c`` of names joined by dots, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    base = _chain(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


def followed(data: bytes, root: Path = ROOT) -> bytes:
    """A ``starter.py`` that was handed in before the engine's files moved, with its imports put right; as it is where
    it is not Python, or longer than anybody writes."""
    if ROOT_NAME.encode() not in data or len(data) > LONG:
        return data
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return rewrite(data.decode(encoding), read(root / ROOT_NAME)).text.encode(encoding)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return data


def starters(root: Path = ROOT) -> list[Starter]:
    """Puts the imports of every ``starter.py`` right, after a copy; the record of its last run goes along. Files with
    nothing to say about are left out, so a second call returns nothing."""
    moves = read(root / ROOT_NAME)
    files = [folder / "starter.py" for folder in lab_folders(root)] if moves.modules else []
    return [made for file in files if file.is_file() and (made := _starter(file, moves, root))]


def _starter(file: Path, moves: Moves, root: Path) -> Starter | None:
    data = file.read_bytes()
    made = Starter(file.relative_to(root).as_posix())
    if ROOT_NAME.encode() not in data:
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        new = rewrite(text, moves)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        former = sorted({m for m in DOTTED.findall(data.decode("utf-8", "replace")) if m in moves.modules})
        made.fault = f"it does not parse{line}, so its imports of {', '.join(former)} are as they were"
        return made if former else None
    made.changes, made.notes = new.changes, new.notes
    if new.text == text:
        return made if made.notes else None
    before = outcomes.digest(file)
    try:
        made.copy = keep(file, root)
        file.write_bytes(new.text.encode(encoding))
    except OSError as error:
        made.fault = f"it cannot be written ({error.strerror}), so its imports are as they were"
        return made
    _still_done(file, before, root)
    return made


def stamp_record(root: Path = ROOT) -> None:
    """Labs that were done before there were contracts are held to the present one (see ``course.held``)."""
    rows = outcomes.recall(root)
    if held.stamp(rows, root):
        write_json(root / outcomes.RECORD, rows)


def _still_done(file: Path, before: str, root: Path) -> None:
    """What was recorded for the file whose digest is ``before`` holds for the file with other imports too."""
    rows, lab = outcomes.recall(root), lab_of(file)
    row = rows.get(lab.key) if lab else None
    if row and row.get("starter") == before:
        row["starter"] = outcomes.digest(file)
        write_json(root / outcomes.RECORD, rows)
