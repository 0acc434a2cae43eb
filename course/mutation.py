"""Mutation check of a lab: small wrong versions of what the learner writes, each of which some test should fail.

Mutated are the functions that a learner writes (stubs in ``starter.py`` and helpers that only ``solution.py`` has). A
mutant that cannot be told from the original by any test stands, with the reason, in ``course/equivalent.toml``.
"""

from __future__ import annotations

import ast
import copy
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from course.contract import learner_functions, parse_file
from course.labs import LabError, functions, lab_of, tomllib
from course.warm import Variant, Verdict, run_variants

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
GOAL = 0.9

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_NEVER = {"annotation", "returns", "decorator_list"}


@dataclass(frozen=True)
class Mutant:
    """One change: where, what, and the whole changed source."""

    function: str
    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        """As in reports and in ``equivalent.toml``."""
        return f"{self.function}: {self.change}"


@dataclass(frozen=True)
class Score:
    """Result for one lab. ``timeouts`` of the killed ran out of time; ``argued`` mutants were left out because
    ``equivalent.toml`` gives a reason, ``stale`` are its keys that fit no mutant any more."""

    lab: str
    mutants: int
    killed: int
    survivors: tuple[Mutant, ...]
    timeouts: int = 0
    argued: int = 0
    stale: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.killed / self.mutants if self.mutants else 1.0


def mutants(source: str, names: set[str]) -> Iterator[Mutant]:
    """Every mutant of the functions called ``names`` (dotted) of a source."""
    tree = ast.parse(source)
    for name, node in functions(tree):
        if name in names:
            for line, change in _sites(node, ast.get_docstring(node, clean=False) is not None):
                yield Mutant(name, line, change, ast.unparse(tree))


def _sites(parent: ast.AST, skip_first: bool = False) -> Iterator[tuple[int, str]]:
    """Changes the tree in place, one site at a time, and yields while the change stands."""
    if isinstance(parent, (ast.Raise, ast.JoinedStr)):
        return
    for name, value in ast.iter_fields(parent):
        if name in _NEVER:
            continue
        if isinstance(value, list):
            for i, child in enumerate(value):
                if isinstance(child, ast.AST) and not (skip_first and name == "body" and i == 0):
                    yield from _replace(child, functools.partial(value.__setitem__, i))
        elif isinstance(value, ast.AST):
            yield from _replace(value, functools.partial(setattr, parent, name))


def _replace(child: ast.AST, put: Callable[[ast.AST], None]) -> Iterator[tuple[int, str]]:
    line = getattr(child, "lineno", 0)
    for new in _versions(child):
        put(new)
        if line:
            yield line, f"{_text(child)} -> {_text(new)}"
        put(child)
    yield from _sites(child)


def _text(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 70 else text[:67] + "..."


def _versions(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.expr):
        return _expressions(node)
    return _statements(node) if isinstance(node, ast.stmt) else []


def _expressions(node: ast.expr) -> list[ast.AST]:
    if isinstance(node, ast.Compare):
        return [
            _with(node, ops=[*node.ops[:i], new(), *node.ops[i + 1 :]])
            for i, op in enumerate(node.ops)
            for new in _COMPARE[type(op)]
        ]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY and not _is_text(node.left):
        return [_with(node, op=_BINARY[type(node.op)]())]
    if isinstance(node, ast.BoolOp):
        return [_with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        return [node.operand]
    if isinstance(node, ast.IfExp):
        return [_with(node, body=node.orelse, orelse=node.body)]
    return _constants(node) if isinstance(node, ast.Constant) else []


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _constants(node: ast.Constant) -> list[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        return [ast.Constant(not value)]
    if isinstance(value, int):
        return [ast.Constant(value + 1), *([ast.Constant(value - 1)] if value else [])]
    if isinstance(value, float):
        return [ast.Constant(value * 2 if value else 1.0)]
    return []


def _statements(node: ast.stmt) -> list[ast.AST]:
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        return [ast.Return(ast.Constant(None))]
    if isinstance(node, ast.If):
        return [_with(node, test=ast.UnaryOp(ast.Not(), node.test))]
    if isinstance(node, ast.Break):
        return [ast.Pass(), ast.Continue()]
    if isinstance(node, ast.Continue):
        return [ast.Pass(), ast.Break()]
    removable = isinstance(node, (ast.AugAssign, ast.Raise, ast.Delete)) or _is_call(node) or _is_store(node)
    return [ast.Pass()] if removable else []


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_call(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _is_store(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def equivalents(key: str, path: Path = EQUIVALENT) -> dict[str, str]:
    """Mutants of a lab that mean the same as the original: name -> reason. A name that fits several lines may go on
    with " @ " and a piece of the one line that is meant."""
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return dict(table.get(key, {}))


def score(folder: Path, jobs: int = 0) -> Score:
    """Runs the lab's tests on every mutant. Raises :class:`LabError` where the solution itself is not green."""
    start = time.monotonic()
    source = (folder / "solution.py").read_text(encoding="utf-8")
    lab = lab_of(folder)
    assert lab is not None
    original = ast.unparse(parse_file(folder / "solution.py"))
    (clean,) = run_variants(folder, [Variant("original", original)], timeout=120)
    if clean.outcome != "passed":
        raise LabError(f"{lab.name}: the solution itself is {clean.outcome}: {', '.join(clean.failed)}")
    made, lines = list(mutants(source, learner_functions(folder))), source.splitlines()
    keys = {m: _key(m, lines, equivalents(lab.key)) for m in made}
    found = [m for m in made if not keys[m]]
    variants = [Variant(str(i), mutant.source) for i, mutant in enumerate(found)]
    verdicts = run_variants(folder, variants, jobs, timeout=max(3.0, 8 * clean.seconds)) if variants else []
    survivors = tuple(m for m, v in zip(found, verdicts, strict=True) if _survived(v))
    return Score(
        lab.key,
        len(found),
        len(found) - len(survivors),
        survivors,
        timeouts=sum(v.outcome == "timeout" for v in verdicts),
        argued=len(made) - len(found),
        stale=tuple(key for key in equivalents(lab.key) if key not in keys.values()),
        seconds=round(time.monotonic() - start, 1),
    )


def _key(mutant: Mutant, lines: list[str], same: dict[str, str]) -> str:
    """The key of ``equivalent.toml`` that means this mutant, or ""."""
    for key in same:
        name, _, piece = key.partition(" @ ")
        if name == mutant.name and piece in lines[mutant.line - 1]:
            return key
    return ""


def _survived(verdict: Verdict) -> bool:
    return verdict.outcome == "passed"
