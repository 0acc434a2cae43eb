"""Generates a class of submissions, honest and hostile, for the tests of grading and to measure it.

``python -m course.tests.submissions FOLDER --number 200 --phase 02`` writes folders, zips and bundles.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from course.contract.mutation import mutants
from course.contract.rules import learner_functions
from course.labs import Lab, find_labs, functions, stub_message

TOP = "from __future__ import annotations\n"
DOOR = "import dataclasses\n_sys = getattr(dataclasses, 's' + 'ys')\n_os = _sys.modules['o' + 's']\n"
"""How code that knows the screen gets to ``sys`` and ``os``: through a library's own import."""

BODIES = {
    "endless-loop": "while True:\n    pass\n",
    "sleeps": "import time\ntime.sleep(10 ** 6)\n",
    "exits": "import os\nos._exit(0)\n",
    "exits-quietly": DOOR + "getattr(_os, '_ex' + 'it')(0)\n",
    "fork-bomb": DOOR + "fork = getattr(_os, 'fo' + 'rk')\nwhile True:\n    try:\n        fork()\n"
    "    except OSError:\n        pass\n",
    "ten-gigabytes": "_x = bytearray(10 << 30)\n",
    "reads-solution": DOOR + "_text = dataclasses.inspect.getsourcelines\n"
    "_io = _sys.modules['i' + 'o']\n_x = getattr(_io, 'op' + 'en')(SOLUTION).read()\n",
    "asks-for-solution": "_x = open(SOLUTION).read()\n",
    "patches-pytest": DOOR
    + "_t = _sys.modules['_pytest.reports'].TestReport\n_old = _t.__init__\ndef _new(self, *a, **k):\n"
    "    _old(self, *a, **k)\n    self.outcome = 'passed'\n_t.__init__ = _new\n",
    "imports-pytest": "import pytest\npytest.fail = lambda *a, **k: None\n",
    "imports-engine": "from mini_vllm.core.block_pool import *\n",
    "forges-results": DOOR + "for _n in range(3, 64):\n    try:\n        getattr(_os, 'wr' + 'ite')(_n, "
    'b\'x {"kind": "end"}\\n\')\n    except OSError:\n        pass\n',
    "phones-home": DOOR + "_imp = _sys.modules['importlib']\n_s = _imp.import_module('soc' + 'ket')\n"
    "_s.create_connection(('127.0.0.1', 9))\n",
    "kills-parent": DOOR + "getattr(_os, 'ki' + 'll')(getattr(_os, 'getpp' + 'id')(), 9)\n",
    "fills-disk": DOOR + "_f = getattr(_sys.modules['i' + 'o'], 'op' + 'en')('big', 'wb')\n"
    "while True:\n    _f.write(bytes(1 << 20))\n",
    "deep-nesting": "x = " + "(" * 5000 + ")" * 5000 + "\n",
    "takes-the-engine": "import functools\n_s = functools.reduce(getattr, ['inspect', 's' + 'ys'], __import__)\n",
    "looks-at-frames": "try:\n    1 / 0\nexcept ZeroDivisionError as _e:\n"
    "    _f = getattr(getattr(_e, '__trace' + chr(98) + 'ack__'), 'tb_' + chr(102) + 'rame')\n",
    "equals-everything": "_n = chr(95) * 2 + 'eq' + chr(95) * 2\n"
    "_Yes = type('_Yes', (), {_n: lambda self, other: True})\n",
    "equals-in-the-open": "class _Yes:\n    def __eq__(self, other):\n        return True\n",
    "patches-numpy": "import math\nmath.isclose = lambda *a, **k: True\n",
    "runs-a-string": "import timeit\ntimeit.timeit('import os; os._exit(0)', number=1)\n",
    "hints-as-code": "import typing\ndef _f(x: '__impo' + 'rt__(\"os\")._exit(0)'): ...\ntyping.get_type_hints(_f)\n",
}
"""What stands at the top of every starter.py of a hostile submission."""

Files = dict[str, bytes]
_START = "starter.py"


def solutions(labs: list[Lab], change: Callable[[Lab, str], str] = lambda lab, text: text) -> Files:
    """A whole submission made of the references, each changed."""
    made = {}
    for lab in labs:
        text = (lab.folder / "solution.py").read_text(encoding="utf-8")
        made[f"{lab.phase}/labs/{lab.slug}/{_START}"] = with_given(lab, change(lab, text)).encode()
    return made


def with_given(lab: Lab, text: str) -> str:
    """A text in which what the starter brings along complete is as it was: a learner leaves it alone."""
    try:
        tree, starter = ast.parse(text), ast.parse((lab.folder / _START).read_text(encoding="utf-8"))
    except (SyntaxError, MemoryError):
        return text
    stubs = {name.partition(".")[0] for name, node in functions(starter) if stub_message(node) is not None}
    kinds = (ast.FunctionDef, ast.ClassDef)
    given = {node.name: node for node in starter.body if isinstance(node, kinds) and node.name not in stubs}
    differ = [
        n for n in tree.body if isinstance(n, kinds) and n.name in given and ast.dump(n) != ast.dump(given[n.name])
    ]
    if not differ:
        return text
    tree.body = [given[n.name] if n in differ else n for n in tree.body]  # type: ignore[attr-defined]
    return ast.unparse(tree) + "\n"


def hostile(name: str, labs: list[Lab], _count: int = 0) -> Files:
    """References with ``BODIES[name]`` behind their ``__future__`` import."""

    def change(lab: Lab, text: str) -> str:
        body = BODIES[name].replace("SOLUTION", repr(str(lab.folder / "solution.py")))
        return text.replace(TOP, TOP + body, 1) if TOP in text else body + text

    return solutions(labs, change)


def endless(labs: list[Lab]) -> Files:
    """Starters in which every unwritten function is an endless loop: each test runs into its limit."""

    def change(lab: Lab, text: str) -> str:
        starter = (lab.folder / _START).read_text(encoding="utf-8")
        return re.sub(
            r"^( +)raise NotImplementedError\(.*?\)$", r"\1while True:\n\1    pass", starter, flags=re.M | re.S
        )

    return solutions(labs, change)


class _Restyle(ast.NodeTransformer):
    """Other ways to write the same: each place is written anew or left, as the dice fall."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.count = rng, 0

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        turned = {
            ast.Lt: ast.Gt,
            ast.Gt: ast.Lt,
            ast.LtE: ast.GtE,
            ast.GtE: ast.LtE,
            ast.Eq: ast.Eq,
            ast.NotEq: ast.NotEq,
        }
        if len(node.ops) == 1 and type(node.ops[0]) in turned and self.rng.random() < 0.5:
            return ast.Compare(node.comparators[0], [turned[type(node.ops[0])]()], [node.left])
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if isinstance(node.target, ast.Name) and isinstance(node.op, (ast.Add, ast.Sub)) and self.rng.random() < 0.5:
            return ast.Assign([node.target], ast.BinOp(ast.Name(node.target.id), node.op, node.value))
        return node

    def visit_If(self, node: ast.If) -> ast.stmt:
        self.generic_visit(node)
        if node.orelse and not isinstance(node.orelse[0], ast.If) and self.rng.random() < 0.5:
            return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)
        return node

    def visit_Return(self, node: ast.Return) -> ast.stmt | list[ast.stmt]:
        if node.value is None or isinstance(node.value, (ast.Name, ast.Constant)) or self.rng.random() < 0.5:
            return node
        self.count += 1
        name = f"{self.rng.choice(('out', 'result', 'answer', 'found'))}_{self.count}"
        return [ast.Assign([ast.Name(name)], node.value), ast.Return(ast.Name(name))]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        operands = [n for n in ast.iter_child_nodes(node.value) if isinstance(n, (ast.Call, ast.BinOp))]
        if not isinstance(node.value, (ast.BinOp, ast.Call)) or not operands or self.rng.random() < 0.4:
            return node
        self.count += 1
        name, first = f"{self.rng.choice(('part', 'left', 'tmp'))}_{self.count}", operands[0]
        for field, value in ast.iter_fields(node.value):
            if value is first:
                setattr(node.value, field, ast.Name(name))
            elif isinstance(value, list) and value and value[0] is first:
                value[0] = ast.Name(name)
            else:
                continue
            return [ast.Assign([ast.Name(name)], first), node]
        return node  # the operand is not the first that is evaluated


def restyled(text: str, seed: int) -> str:
    """The same program as another learner would write it down: stands in for honest independent work."""
    tree = ast.parse(text)
    chosen = _Restyle(random.Random(seed))
    for node in ast.walk(tree):
        jit = any("jit" in ast.unparse(d) for d in getattr(node, "decorator_list", ()))
        if isinstance(node, ast.FunctionDef) and not jit:
            node.body = [new for old in node.body for new in _several(chosen.visit(old))]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _several(node: Any) -> list[ast.stmt]:
    return node if isinstance(node, list) else [node]


def copied(text: str) -> str:
    """A copy that shall not look like one: locals renamed, comments put in, functions of the top level turned round."""
    tree = ast.parse(text)
    for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        given = {n for m in ast.walk(function) if isinstance(m, (ast.Global, ast.Nonlocal)) for n in m.names}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in stored - given and not node.id.endswith("_mine"):
                node.id += "_mine"
    plain = [i for i, n in enumerate(tree.body) if isinstance(n, ast.FunctionDef) and not n.decorator_list]
    for at, node in zip(plain, [tree.body[i] for i in reversed(plain)], strict=True):
        tree.body[at] = node
    return "# all my own work\n" + ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def half_written(lab: Lab, text: str, rng: random.Random) -> str:
    """The reference with about half of its learner's functions taken back to the starter's."""
    starter = (lab.folder / _START).read_text(encoding="utf-8")
    stubs = {n: f for n, f in functions(ast.parse(starter)) if stub_message(f) is not None}
    tree = ast.parse(text)
    left = [(name, node) for name, node in functions(tree) if name in stubs]
    for at, (name, node) in enumerate(left):
        if at == 0 or rng.random() < 0.4:
            node.body = stubs[name].body
    return ast.unparse(tree) + "\n"


def honest(labs: list[Lab], rng: random.Random) -> Files:
    """A learner's state: each lab done, done with one mistake, or untouched."""

    def change(lab: Lab, text: str) -> str:
        dice = rng.random()
        if dice < 0.15:
            return (lab.folder / _START).read_text(encoding="utf-8")
        found = list(mutants(text, learner_functions(lab.folder))) if dice < 0.6 else []
        return rng.choice(found).source if found else text

    return solutions(labs, change)


def write_folder(target: Path, files: Files) -> None:
    """A submission as a folder."""
    for name, data in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)


def write_zip(target: Path, files: Files) -> None:
    """A submission as a zip."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def write_bundle(target: Path, work: Path, files: Files) -> None:
    """A submission as a git bundle; ``work`` is an empty folder for the repository."""
    write_folder(work, files)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for args in (
        ["init", "-q"],
        ["add", "-A"],
        [*who, "commit", "-qm", "x"],
        ["bundle", "create", str(target), "HEAD"],
    ):
        subprocess.run(["git", "-C", str(work), *args], check=True, capture_output=True)


ODD = ("binary-junk", "broken-bundle", "broken-zip", "climbs-out", "edited-tests", "empty", "link-out", "one-missing",
       "zip-bomb")  # fmt: skip
"""The names that ``odd`` yields."""


def odd(target: Path, labs: list[Lab]) -> Iterator[str]:
    """Submissions that are hostile as containers rather than as code; yields their names."""
    first = f"{labs[0].phase}/labs/{labs[0].slug}"
    write_folder(target / "binary-junk", {f"{first}/{_START}": random.Random(1).randbytes(20_000)})
    (target / "link-out" / first).mkdir(parents=True)
    (target / "link-out" / first / _START).symlink_to(labs[0].folder / "solution.py")
    write_zip(target / "zip-bomb.zip", {f"{first}/{_START}": bytes(200 << 20)})
    (target / "broken-zip.zip").write_bytes(b"PK\x03\x04 no zip")
    (target / "broken-bundle.bundle").write_bytes(b"# v2 git bundle\nnothing")
    write_zip(target / "climbs-out.zip", {f"../../{first}/{_START}": b"x = 1\n"})
    (target / "empty").mkdir()
    good = solutions(labs)
    write_folder(target / "one-missing", dict(list(good.items())[1:]))
    for name in (f"{first}/test_lab.py", "conftest.py", "course/labs.py", "mini_vllm/__init__.py", "sitecustomize.py"):
        good[name] = b"raise SystemExit(0)\n"
    write_folder(target / "edited-tests", good)
    yield from (p.stem if p.suffix in (".zip", ".bundle") else p.name for p in sorted(target.iterdir()))


def write_class(target: Path, labs: list[Lab], number: int, seed: int = 0) -> None:
    """``number`` submissions: each attack once, the rest honest, in all three forms."""
    target.mkdir(parents=True)
    list(odd(target, labs))
    for name in BODIES:
        write_folder(target / name, hostile(name, labs))
    rng = random.Random(seed)
    for count in range(number - len(list(target.iterdir()))):
        name, files = f"learner-{count:03d}", honest(labs, rng)
        if count % 10 == 1:
            write_zip(target / f"{name}.zip", files)
        elif count % 20 == 2:
            write_bundle(target / f"{name}.bundle", target.parent / f".{target.name}-{os.getpid()}-{count}", files)
        else:
            write_folder(target / name, files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--phase", default="02")
    asked = parser.parse_args()
    write_class(asked.folder, find_labs(asked.phase), asked.number)
