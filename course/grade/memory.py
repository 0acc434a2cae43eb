"""What reaches memory as bytes, or runs text: places that a look at single words (``faults.py``) does not see.

Triton's interpreter takes a kernel for the lines from the last one on that begins with ``def``, be it a line of a text; and
``array.data = other`` lets an array of objects stand on numbers (NumPy below 2.3)."""

import ast
import re
from collections.abc import Iterator, Mapping

_DEF = re.compile(r"\s*(async\s+)?def\b")


def hidden_functions(source: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Lines that begin like a function and begin none: (line, sentence)."""
    begins = {(node.lineno, node.col_offset) for node in nodes if isinstance(node, ast.FunctionDef)}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", source), 1):
        if _DEF.match(line) and (number, len(line.encode()) - len(line.lstrip().encode())) not in begins:
            yield number, "a line of a text that begins like a function, which Triton would run"


def raw(node: ast.Attribute, above: Mapping[ast.AST, ast.AST]) -> Iterator[str]:
    """Sentences about ``.data`` and ``.__init__`` of what is not the object that is being made."""
    over = above[node]
    if node.attr == "data" and not isinstance(node.ctx, ast.Load) and not _being_made(node.value, node, above):
        yield "changes the attribute data of what is not being made"
    if node.attr == "__init__":
        called = isinstance(over, ast.Call) and over.func is node
        base = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
        first = over.args[0] if isinstance(over, ast.Call) and over.args else None
        if not (called and (base or _being_made(first, node, above))):
            yield "__init__ of what is not being made"


def by_name(call: ast.Call) -> Iterator[str]:
    """The same, said as a text."""
    said = [n.value for n in call.args[1:2] if isinstance(n, ast.Constant)]
    if said == ["data"] and ast.unparse(call.func) in ("setattr", "object.__setattr__"):
        yield "changes the attribute data by its name"


def _being_made(value: ast.AST | None, at: ast.AST, above: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a value is the first argument of the ``__init__`` around it, which is bound nowhere else in there."""
    while not isinstance(at, (ast.FunctionDef, ast.Lambda, ast.Module)):
        at = above[at]
    if not isinstance(at, ast.FunctionDef) or at.name != "__init__" or not isinstance(above[at], ast.ClassDef):
        return False
    mine = [arg.arg for arg in [*at.args.posonlyargs, *at.args.args]][:1]
    bound = {n.id for n in ast.walk(at) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {getattr(n, key, None) for n in ast.walk(at) for key in ("name", "asname", "rest")}
    return isinstance(value, ast.Name) and [value.id] == mine and value.id not in bound and not at.decorator_list
