"""Markers: what skips without torch and its kin says so by `needs_torch`, so that one command runs all of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from course.labs import ROOT

LIBRARIES = {"torch", "transformers", "triton", "tokenizers", "safetensors", "huggingface_hub"}
"""What the extras `hub`, `triton` and `dev` bring, which the suite's own extra, `test`, does not."""
FOLDERS = ("mini_vllm", "course", "models", "benchmarks", "phase-*")
MARK = re.compile(r"\bpytest\.mark\.needs_torch\b")


def test_files(root: Path = ROOT) -> list[Path]:
    """Every test module of the repository."""
    return sorted(path for name in FOLDERS for top in root.glob(name) for path in top.rglob("test_*.py"))


test_files.__test__ = False  # type: ignore[attr-defined]


def asks(node: ast.AST) -> bool:
    """Whether a statement is one that skips, or fails, where one of the libraries is absent."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        wanted = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
        return name == "triton_or_skip" or (name == "importorskip" and str(wanted).split(".")[0] in LIBRARIES)
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.partition(".")[0] in LIBRARIES for name in names)


def marked(node: ast.AST, module: bool = False) -> bool:
    """Whether the decorators of a function or class, or a module's `pytestmark`, name the marker."""
    if not module:
        return any(MARK.search(ast.unparse(each)) for each in getattr(node, "decorator_list", []))
    return any(
        isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark" and MARK.search(ast.unparse(each))
        for each in getattr(node, "body", [])
    )


def unmarked(text: str) -> list[str]:
    """`line: name` of each test (or module) that asks for a library, itself or by a helper, without the marker."""
    tree = ast.parse(text)
    if marked(tree, module=True):
        return []
    return [f"{node.lineno}: {getattr(node, 'name', 'the module')}" for node in _askers(tree)]


def _askers(tree: ast.Module) -> Iterator[ast.stmt]:
    inner = [(node, each) for node in tree.body for each in getattr(node, "body", [])]
    parts = [part for part in inner if isinstance(part[0], ast.ClassDef)]
    parts += [(node, node) for node in tree.body if not isinstance(node, ast.ClassDef)]
    helpers: set[str] = set()  # functions that are no tests: who calls them, or takes them as a fixture, asks
    found: list[ast.stmt] = []
    while True:
        found = [each for _, each in parts if any(asks(n) or _named(n) in helpers for n in ast.walk(each))]
        names = {each.name for each in found if isinstance(each, ast.FunctionDef) and not each.name.startswith("test")}
        if names == helpers:
            break
        helpers = names
    free = {id(each) for owner, each in parts if marked(owner) or marked(each)}
    yield from (each for each in found if getattr(each, "name", "") not in helpers and id(each) not in free)


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
