"""The two sides of an assertion that failed, as values: what was got, what was expected, and where they first differ.

pytest reports the sides of a comparison to a hook; of ``assert np.allclose(a, b)`` and ``assert (a <= b).all()`` it
shows only False. There the values are read from the variables in which pytest's rewritten assert keeps them."""

import ast
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

CALLS = ("allclose", "array_equal", "isclose", "equal")
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 12
_MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


def rows(op: str, left: object, right: object, source: str) -> list[tuple[str, str]]:
    """The comparison that failed. Where only the left side of ``source`` is a literal, the sides change places."""
    got, wanted = left, right
    if op in (*_MIRROR, "==", "!=") and _literal_first(source, show(left)):
        got, wanted, op = right, left, _MIRROR.get(op, op)
    expected = show(wanted) if op in ("==", "is") else f"something {op} {show(wanted)}"
    found = [("got", show(got)), ("expected", expected)]
    where = first_difference(got, wanted) if op == "==" else ""
    return [*found, ("differ", where)] if where else found


def show(value: Any, most: int = 10**9) -> str:
    """A short ``repr``, whatever the object does in its own; of an array of more than ``most`` bytes its shape."""
    try:
        big = getattr(value, "nbytes", 0) > most
        return f"{type(value).__name__} {tuple(value.shape)}" if big else re.sub(r"\s*\n\s*", " ", _SHORT.repr(value))
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _literal_first(source: str, failed: str) -> bool:
    try:
        pairs = [(n.left, n.comparators[0]) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Compare)]
    except SyntaxError:
        return False
    return bool(pairs) and all(_literal(left) == failed and not _literal(right) for left, right in pairs)


def _literal(node: ast.expr) -> str:
    """A literal as it is shown; "" for any other expression."""
    try:
        return show(ast.literal_eval(node))
    except ValueError:
        return ""


def first_difference(got: Any, wanted: Any) -> str:
    """Where two values of one kind differ first; "" where their short forms say it all."""
    try:
        if isinstance(got, (set, frozenset)) and isinstance(wanted, (set, frozenset)):
            parts = [("too many", got - wanted), ("missing", wanted - got)]
            return "; ".join(f"{what}: {show(part)}" for what, part in parts if part)
        if isinstance(got, dict) and isinstance(wanted, dict):
            return _keys(got, wanted)
        if isinstance(got, (list, tuple)) and isinstance(wanted, (list, tuple)):
            return _items(got, wanted)
        if hasattr(got, "shape") and hasattr(wanted, "shape"):
            return _elements(got, wanted)
    except Exception:  # a learner's class in there may do anything
        return ""
    return ""


def _keys(got: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> str:
    for key in wanted:
        if key not in got:
            return f"no key {show(key)}"
        if got[key] != wanted[key]:
            return f"under {show(key)}: got {show(got[key])}, expected {show(wanted[key])}"
    return f"a key too many: {show(next(key for key in got if key not in wanted))}"


def _items(got: Any, wanted: Any) -> str:
    for i, (one, other) in enumerate(zip(got, wanted, strict=False)):
        if one != other:
            return f"at index {i}: got {show(one)}, expected {show(other)}"
    return f"{len(got)} items, expected {len(wanted)}" if len(got) != len(wanted) else ""


def _elements(got: Any, wanted: Any, op: str = "==") -> str:
    import numpy as np

    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape and op == "==":
        return f"shape {got.shape}, expected {wanted.shape}"
    got, wanted = np.broadcast_arrays(got, wanted)
    ufuncs: dict[str, Any] = {"<=": np.less_equal, "<": np.less, ">=": np.greater_equal, ">": np.greater}
    ufuncs["=="] = np.isclose
    good = ufuncs[op](got, wanted)
    bad = np.argwhere(~good)
    if not len(bad):
        return ""
    at = tuple(int(i) for i in bad[0])
    than = "" if op == "==" else f"{op} "
    return f"{len(bad)} of {good.size} elements, first at {list(at)}: got {got[at]}, expected {than}{wanted[at]}"


def call_rows(statement: ast.Assert, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """``got`` and ``expected`` of ``assert allclose(a, b)`` and ``assert (a == b).all()``, from the local variables of
    the frame that failed; empty for any other assert, and where the values are not to be had."""
    test = statement.test
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Attribute):
        return []
    known = _temporaries(test, values)
    op, sides = "==", test.args[:2]
    if test.func.attr == "all" and isinstance(test.func.value, ast.Compare) and len(test.func.value.ops) == 1:
        op = _OPS.get(type(test.func.value.ops[0]), "")
        sides = [test.func.value.left, test.func.value.comparators[0]]
    elif test.func.attr not in CALLS:
        return []
    found = [_value(side, known, values) for side in sides]
    if op not in _OPS.values() or len(found) != 2 or any(each is None for each in found):
        return []
    got, wanted = found
    try:
        where = _elements(got, wanted, op)
    except Exception:
        where = ""
    made = [("got", show(got)), ("expected", show(wanted) if op == "==" else f"{op} {show(wanted)}")]
    return [*made, ("differ", where)] if where else made


def _value(node: ast.expr, known: Mapping[ast.AST, Any], values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return values.get(node.id)
    return ast.literal_eval(node) if _literal(node) else known.get(node)


def _temporaries(test: ast.expr, values: Mapping[str, Any]) -> dict[ast.AST, Any]:
    """The parts of an assertion that pytest's rewriting keeps in variables, with their values: it numbers them in the
    order in which it visits them, and sets those of an assertion that held to None."""
    numbered = [(int(name[10:]), value) for name, value in values.items() if name.startswith("@py_assert")]
    kept = [value for _, value in sorted(numbered, key=lambda pair: pair[0]) if value is not None]
    parts = list(_visited(test))
    return dict(zip(parts, kept, strict=True)) if len(parts) == len(kept) else {}


def _visited(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.Name, ast.Constant)):
        if isinstance(node, ast.Constant):
            yield node
        return
    if isinstance(node, ast.Compare):
        yield from _visited(node.left)
        yield node
        for each in node.comparators:
            yield from _visited(each)
        return
    children: list[ast.AST] = []
    if isinstance(node, ast.Call):
        children = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.BinOp):
        children = [node.left, node.right]
    elif isinstance(node, ast.Attribute):
        children = [node.value]
    elif isinstance(node, ast.UnaryOp):
        children = [node.operand]
    elif isinstance(node, ast.Starred):
        yield from _visited(node.value)
        return
    for child in children:
        yield from _visited(child)
    yield node
