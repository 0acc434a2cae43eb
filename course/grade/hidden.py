"""What single words (``faults.py``) do not show: text that runs, and text that an editor shows otherwise.

Triton's interpreter takes for a kernel the lines from the last one on that begins with ``def``, be it one of a text;
and who decides about a held file must see its letters in the order in which Python does."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from course.grade.language import CAREFUL

_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
_DEF = re.compile(r"\s*(async\s+)?def\b")


def hidden(source: str, nodes: list[ast.AST], triton: bool) -> Iterator[tuple[int, str]]:
    """Lines that an editor shows in another order; where Triton may be used, those that begin like a function and
    begin none. Pairs of a line and a sentence."""
    begins = {(node.lineno, node.col_offset) for node in nodes if isinstance(node, ast.FunctionDef)}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", source), 1):
        if _TURNS.search(line):
            yield number, "letters that an editor shows in another order"
        if triton and _DEF.match(line) and (number, len(line.encode()) - len(line.lstrip().encode())) not in begins:
            yield number, "a line of a text that begins like a function, which Triton would run"


def has_a_member(node: ast.ClassDef, flag: bool, auto: bool) -> bool:
    """Whether an enumeration surely has a member: one without can be called with a table of names made at run time, and
    is then a class of these. ``flag``: a zero or a sum is none; ``auto``: ``auto()`` may be trusted."""
    for part in node.body:
        named = part.targets[0] if isinstance(part, ast.Assign) and len(part.targets) == 1 else None
        if not isinstance(part, ast.Assign) or not isinstance(named, ast.Name) or named.id.startswith("_"):
            continue
        value = part.value
        if isinstance(value, ast.Constant):
            whole = value.value if type(value.value) is int else 0
            if not flag or (whole > 0 and whole & (whole - 1) == 0):
                return True
        elif isinstance(value, ast.Call) and ast.unparse(value) in ("auto()", "enum.auto()"):
            if auto:
                return True
        elif isinstance(value, ast.Tuple) and value.elts and not flag:
            return True
    return False


def is_kernel(node: ast.FunctionDef, file: Any) -> bool:
    """Whether Triton reads a function's text, so that no look at objects can be written into it; ``file``: the
    ``faults.File`` around it."""
    for one in node.decorator_list:
        made = getattr(one, "func", one)
        roots = {n.id for n in ast.walk(made) if isinstance(n, ast.Name)}
        if file.dotted(made) == "triton.jit" and roots.isdisjoint(file.made | file.twice):
            return True
    return False


def in_a_kernel(node: ast.AST, file: Any) -> Iterator[str]:
    """Sentences about a node in a kernel that would have to be looked at when it runs."""
    if isinstance(node, ast.Attribute) and not file.dotted(node):
        if not isinstance(node.ctx, ast.Load) or not file.free(node.attr):
            yield f"asks for {node.attr} in a kernel, where no object can be looked at"
    elif isinstance(node, ast.Name) and file.dotted(node) in CAREFUL:
        yield f"uses {node.id} in a kernel, where no object can be looked at"


def means_more(base: ast.expr, file: Any) -> bool:
    """Whether a name in a class's base is one that the file binds to something else as well."""
    again = file.made - file.sure
    return any(getattr(node, "id", "") in again for node in ast.walk(base))
