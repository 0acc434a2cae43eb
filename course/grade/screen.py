"""Reads a submission's ``starter.py`` before it runs: imports beyond the lab's, and doors out of the sandbox.

A lab needs arithmetic and containers; nothing honest in it touches frames, the interpreter or the file system. The
screen is the first wall, not the only one: what it misses, the sandbox and the checks of the runner meet.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable

RISKY_MODULES = frozenset(
    [
        "_thread",
        "asyncio",
        "atexit",
        "bdb",
        "builtins",
        "code",
        "codeop",
        "concurrent",
        "ctypes",
        "_ctypes",
        "dis",
        "faulthandler",
        "fcntl",
        "ftplib",
        "gc",
        "glob",
        "http",
        "imp",
        "importlib",
        "inspect",
        "io",
        "linecache",
        "marshal",
        "mmap",
        "multiprocessing",
        "nt",
        "ntpath",
        "os",
        "pathlib",
        "pdb",
        "pickle",
        "pkgutil",
        "platform",
        "posix",
        "posixpath",
        "pty",
        "resource",
        "runpy",
        "select",
        "selectors",
        "shelve",
        "shutil",
        "signal",
        "site",
        "smtplib",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "sysconfig",
        "tempfile",
        "threading",
        "trace",
        "traceback",
        "tracemalloc",
        "unittest",
        "urllib",
        "webbrowser",
        "winreg",
        "xmlrpc",
        "zipfile",
        "zipimport",
        "_posixsubprocess",
        "_socket",
        "_io",
        "_imp",
        "_testcapi",
        "_xxsubinterpreters",
        "interpreters",
    ]
)
"""Standard modules that no lab needs; one that the lab's own starter.py or solution.py imports is allowed there."""

RISKY_NAMES = frozenset(
    [
        "__import__",
        "__builtins__",
        "__loader__",
        "__spec__",
        "breakpoint",
        "compile",
        "eval",
        "exec",
        "exit",
        "globals",
        "input",
        "locals",
        "open",
        "quit",
        "vars",
    ]
)
RISKY_ATTRIBUTES = frozenset(
    [
        "__base__",
        "__bases__",
        "__builtins__",
        "__closure__",
        "__code__",
        "__getattribute__",
        "__globals__",
        "__import__",
        "__loader__",
        "__mro__",
        "__reduce__",
        "__reduce_ex__",
        "__spec__",
        "__subclasses__",
        "__traceback__",
        "ag_frame",
        "cr_frame",
        "ctypeslib",
        "f_back",
        "f_builtins",
        "f_code",
        "f_globals",
        "f_locals",
        "fromfile",
        "gi_frame",
        "memmap",
        "genfromtxt",
        "loadtxt",
        "tb_frame",
        "tb_next",
        "tofile",
        "with_traceback",
        "_os",
        "_sys",
        "os",
        "sys",
    ]
)


def screen(source: str, allowed: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """What the file must not have, as sentences with lines; empty where it is clean.

    ``allowed``: modules from labs.toml; ``own``: modules that the lab's own files import. Raises what ``ast.parse``
    raises where the text is not Python.
    """
    tree = ast.parse(source)
    fine = set(allowed) | set(own)
    found = []
    for node in ast.walk(tree):
        for what in _faults(node, fine):
            found.append(f"line {getattr(node, 'lineno', 0)}: {what}")
    return list(dict.fromkeys(found))


def _faults(node: ast.AST, fine: set[str]) -> list[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [f"imports {m}, which this lab does not allow" for m in imported(node) if not permitted(m, fine)]
    if isinstance(node, ast.Name) and node.id in RISKY_NAMES:
        return [f"uses {node.id}"]
    if isinstance(node, ast.Attribute) and node.attr in RISKY_ATTRIBUTES:
        return [f"uses the attribute {node.attr}"]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [f"names {node.value!r} in a string"] if node.value in RISKY_ATTRIBUTES - {"os", "sys"} else []
    return []


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Modules that a statement imports; relative ones begin with a dot."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")]


def permitted(module: str, fine: Iterable[str]) -> bool:
    """Whether a lab may import ``module``: named (or its package named) in ``fine``, or a harmless standard one."""
    if any(module == name or module.startswith(f"{name}.") for name in fine):
        return True
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names and top not in RISKY_MODULES


def imports_of(source: str) -> set[str]:
    """All modules that a file imports anywhere."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    return {module for node in nodes for module in imported(node)}
