"""Markers: what skips without torch and its kin says so by `needs_torch`, so that one command runs all of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.labs import ROOT, tomllib
from course.pytest_plugin import MARKERS

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


@pytest.mark.parametrize("path", test_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_who_needs_torch_says_so(path: Path) -> None:
    found = unmarked(path.read_text(encoding="utf-8"))
    assert not found, f"{path.relative_to(ROOT)}: mark it needs_torch (a module by pytestmark): {found}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torch = pytest.importorskip('torch')", ["1: the module"]),
        ("pytestmark = pytest.mark.needs_torch\ntorch = pytest.importorskip('torch')", []),
        ("pytestmark = [needs_x, pytest.mark.needs_torch]\nON_GPU = triton_or_skip()", []),
        ("pytestmark = needs_x\nON_GPU = triton_cpu.triton_or_skip()", ["2: the module"]),
        ("def test_a():\n    import torch.nn\n\ndef test_b():\n    pass", ["1: test_a"]),
        ("@pytest.mark.needs_torch\ndef test_a():\n    from transformers import AutoModel", []),
        ("def lib():\n    return pytest.importorskip('safetensors.numpy')\n\ndef test_a():\n    lib()", ["4: test_a"]),
        ("def lib():\n    import torch\n\n@pytest.mark.needs_torch\ndef test_a():\n    lib()", []),
        ("@pytest.fixture\ndef lib():\n    import torch\n\ndef test_a(lib):\n    pass", ["5: test_a"]),
        ("class TestA:\n    def test_b(self):\n        import triton", ["2: test_b"]),
        ("@pytest.mark.needs_torch\nclass TestA:\n    def test_b(self):\n        import triton", []),
        ("np = pytest.importorskip('numpy')\nimport torchless", []),
    ],
)
def test_who_does_not_is_found(text: str, found: list[str]) -> None:
    assert unmarked(text) == found


def test_each_marker_is_told_once() -> None:
    """pyproject.toml and the plugin, which a copy of a lab elsewhere has, say the same."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert set(table["markers"]) == set(MARKERS) - {m for m in MARKERS if m.startswith("provided")}


LINE = '-m "not gpu and not slow"'


def test_the_readme_leaves_out_what_is_slow_and_nothing_else() -> None:
    """Nothing is sampled away: what line 2 leaves out, CI runs by its name."""
    readme, runs = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", ".ci/run"))
    assert readme.count(f".venv/bin/pytest {LINE} -q -n 2\n") == 1
    assert '-m "slow and not gpu"' in runs and '-m "needs_torch and not gpu"' in runs
