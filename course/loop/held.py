"""What a learner was held to when a lab was done: its tests, and the public names of its file.

A digest of both goes into the record of the run. Where the course changes a lab later, it no longer agrees, and the
lab is "done (earlier version)". Imports of mini_vllm, dotted names below it, comments, docstrings of tests, layout
and the marks that only say when a test is run (``slow``, ``needs_torch``) do not count: a file of the engine that
moves asks nothing new of anybody."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from course.contract.rules import public
from course.grade.language import imported
from course.labs import LAB_PATH, parsed
from course.loop.outcomes import RECORD, digest, recall
from course.loop.record import write_json

DOTTED = re.compile(r"\bmini_vllm(?:\.\w+)*\.(\w+)")
WHEN = ("pytest.mark.slow", "pytest.mark.needs_torch")
SILENT = ("ctx", "kind", "type_comment", "type_ignores", "type_params")


def contract(folder: Path) -> str:
    """Digest of what a lab asks for, by its tests and ``solution.py``'s names; "" where these do not parse."""
    tests, solution = parsed(folder / "test_lab.py"), parsed(folder / "solution.py")
    if tests is None or solution is None:
        return ""
    names = sorted((name, DOTTED.sub(r"\1", text)) for name, (text, _) in public(solution).items())
    return digest("\n".join([_written(tests), *(f"{name} {text}" for name, text in names)]))


def _written(node: Any) -> str:
    """A tree as text that is the same for every layout and every version of Python."""
    if isinstance(node, list):
        return "[" + " ".join(text for each in node if (text := _written(each))) + "]"
    modules = imported(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else [""]
    if all(name.partition(".")[0] == "mini_vllm" for name in modules):
        return ""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return ""
    if isinstance(node, (ast.Attribute, ast.Assign)) and ast.unparse(node).removeprefix("pytestmark = ") in WHEN:
        return ""
    if isinstance(node, ast.Attribute) and re.fullmatch(DOTTED, ast.unparse(node)):
        return f"(Name {node.attr})"
    if isinstance(node, ast.Name):
        return f"(Name {node.id})"
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in SILENT)
        told = [(name, _written(value)) for name, value in fields if value is not None and value != []]
        said = [f"{name}={text}" for name, text in told if (name, text) != ("decorator_list", "[]")]
        return f"({type(node).__name__} {' '.join(said)})"
    return DOTTED.sub(r"\1", node) if isinstance(node, str) else repr(node)


def stamp(rows: dict[str, dict[str, Any]], root: Path, keys: Iterable[str] = ()) -> bool:
    """The present contract into the rows of ``keys``, and into those without one; whether a row changed."""
    changed = False
    for key, row in rows.items():
        if not isinstance(row, dict) or (row.get("contract") and key not in keys):
            continue
        folder = root / key.replace("/", "/labs/", 1)
        now = contract(folder) if LAB_PATH.search(folder.as_posix()) else ""
        changed |= row.get("contract", "") != now
        row["contract"] = now
    return changed


def stamp_record(root: Path) -> None:
    """Labs that were done before there were contracts are held to the present one."""
    rows = recall(root)
    if stamp(rows, root):
        write_json(root / RECORD, rows)


def is_earlier(row: dict[str, Any], folder: Path) -> bool:
    """Whether a lab asks for something else than it did when ``row`` was recorded."""
    return bool(row.get("contract")) and row["contract"] != contract(folder)
