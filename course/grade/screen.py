"""Reads a submission's ``starter.py`` before it runs: imports beyond the lab's, doors out of the sandbox, and objects
that would answer every question of a test with yes.

A lab needs arithmetic and containers; nothing honest in it touches frames, the interpreter or the file system. The
screen is the first wall, not the only one: what it misses, the facades, the sandbox and the runner's checks meet."""

import ast
from collections.abc import Iterable, Iterator

from course.labs import COURSE, tomllib

_WORDS = tomllib.loads((COURSE / "walls.toml").read_text(encoding="utf-8"))
HARMLESS_MODULES, RISKY_NAMES = (frozenset(_WORDS[name].split()) for name in ("harmless_modules", "risky_names"))
RISKY_ATTRIBUTES, FORGING = (frozenset(_WORDS[name].split()) for name in ("risky_attributes", "forging"))
_IN_STRINGS = (RISKY_ATTRIBUTES | FORGING) - {"os", "sys", "mro", "ctypes", "__class__"}


def screen(source: str, allowed: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """What the file must not have, as sentences with lines; empty where it is clean. ``allowed``: modules from
    labs.toml; ``own``: modules that the lab's own files import, and forging methods that they define. Raises what
    ``ast.parse`` raises where the text is not Python."""
    nodes = list(ast.walk(ast.parse(source)))
    fine = set(allowed) | set(own)
    statements = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    brought = {(a.asname or a.name).partition(".")[0] for node in statements for a in node.names}
    found = []
    for node in nodes:
        for what in (*_faults(node, fine), *_changes(node, brought)):
            found.append(f"line {getattr(node, 'lineno', 0)}: {what}")
    return list(dict.fromkeys(found))


def _changes(node: ast.AST, brought: set[str]) -> Iterator[str]:
    """Assignments to a part of something imported: ``math.isclose = ...``, ``Request.prompt = ...``."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in brought:
            yield f"changes {ast.unparse(node)}"


def _faults(node: ast.AST, fine: set[str]) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (f"imports {m}, which this lab does not allow" for m in imported(node) if not permitted(m, fine))
        if isinstance(node, ast.ImportFrom):
            where = node.module or "."
            yield from (f"imports {a.name} from {where}" for a in node.names if a.name in RISKY_ATTRIBUTES | {"*"})
    elif isinstance(node, ast.Name) and node.id in RISKY_NAMES:
        yield f"uses {node.id}"
    elif isinstance(node, ast.Attribute) and node.attr in RISKY_ATTRIBUTES:
        yield f"uses the attribute {node.attr}"
    elif isinstance(node, ast.MatchClass):
        yield from (f"uses the attribute {name}" for name in node.kwd_attrs if name in RISKY_ATTRIBUTES)
    elif (name := _defined(node)) in FORGING and name not in fine:
        yield f"defines {name}, with which a wrong answer could pass for a right one"
    elif isinstance(node, (ast.Constant, ast.BinOp, ast.JoinedStr)) and (text := _text(node)) in _IN_STRINGS:
        yield f"names {text!r} in a string"


def _defined(node: ast.AST) -> str:
    """The name that a statement or an assignment binds, "" for other nodes."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return ""


def _text(node: ast.AST) -> str | None:
    """The string that an expression of constants makes, None where it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [_text(v.value if isinstance(v, ast.FormattedValue) else v) for v in node.values]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(node.left), _text(node.right)]
    else:
        return None
    return None if None in parts else "".join(p for p in parts if p is not None)


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Modules that a statement imports; relative ones begin with a dot."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")]


def permitted(module: str, fine: Iterable[str]) -> bool:
    """Whether a lab may import ``module``: named (or its package named) in ``fine``, or a harmless standard one."""
    if any(module == name or module.startswith(f"{name}.") for name in fine):
        return True
    return module.partition(".")[0] in HARMLESS_MODULES


def brought_along(source: str) -> set[str]:
    """What a file of the lab itself imports and which of the ``FORGING`` methods it defines: allowed to all."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = {m for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom)) for m in imported(n)}
    return modules | ({_defined(node) for node in nodes} & FORGING)
