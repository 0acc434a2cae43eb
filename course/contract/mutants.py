"""Mutants: small wrong versions of a solution, one fault each."""

import ast
import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from course.contract.operators import HELPERS, Site, faults
from course.labs import functions

_ORDERS = """
    Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In
"""
_COMPARE = {getattr(ast, old): [getattr(ast, n) for n in new] for old, *new in map(str.split, _ORDERS.split(","))}
_PAIRS = """
    Add Sub, Sub Add, Mult Add, Div Mult, FloorDiv Mult, Mod Add, Pow Mult, MatMult Add, BitAnd BitOr, BitOr BitAnd,
    LShift RShift, RShift LShift
"""
_BINARY = {getattr(ast, old): getattr(ast, new) for old, new in map(str.split, _PAIRS.split(","))}
_NEVER = {"annotation", "returns", "decorator_list"}


@dataclass(frozen=True)
class Mutant:
    """One change: where, what, and the whole changed source. ``column`` counts characters from 0."""

    function: str
    line: int
    column: int
    change: str
    source: str

    @property
    def name(self) -> str:
        """As in reports and in ``equivalent.toml``."""
        return f"{self.function}: {self.change}"


def mutants(source: str, names: set[str], texts: bool = True) -> Iterator[Mutant]:
    """Every mutant of the functions ``names`` (dotted) of a source; ``texts``: with their own sources (slow)."""
    tree, lines = ast.parse(source), source.splitlines()
    for name, node in functions(tree):
        if name in names:
            documented = ast.get_docstring(node, clean=False) is not None
            for old, change in itertools.chain(_sites(node, documented), faults(node)):
                text = lines[old.lineno - 1].encode()[: old.col_offset]
                made = ast.unparse(tree) + HELPERS if texts else ""
                yield Mutant(name, old.lineno, len(text.decode()), change, made)


def _sites(parent: ast.AST, skip_first: bool = False) -> Iterator[Site]:
    """Changes the tree in place, one site at a time, and yields (what stood there, change) while the change stands."""
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


def _replace(child: ast.AST, put: Callable[[ast.AST], None]) -> Iterator[Site]:
    if isinstance(child, (ast.expr, ast.stmt)):
        for new in _expressions(child) if isinstance(child, ast.expr) else _statements(child):
            put(new)
            yield child, f"{_text(child)} -> {_text(new)}"
            put(child)
    yield from _sites(child)


def _text(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 70 else text[:67] + "..."


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
    return [ast.Constant(value * 2 if value else 1.0)] if isinstance(value, float) else []


def _statements(node: ast.stmt) -> list[ast.AST]:
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        return [ast.Return(ast.Constant(None))]
    if isinstance(node, ast.If):
        return [_with(node, test=ast.UnaryOp(ast.Not(), node.test))]
    if isinstance(node, ast.Break):
        return [ast.Pass(), ast.Continue()]
    if isinstance(node, ast.Continue):
        return [ast.Pass(), ast.Break()]
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stores = isinstance(node, ast.Assign) and any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets)
    removable = isinstance(node, (ast.AugAssign, ast.Raise, ast.Delete)) or is_call or stores
    return [ast.Pass()] if removable else []


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
