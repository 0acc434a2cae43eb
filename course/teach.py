"""What a failed lab test adds to its traceback: the claim of the README that the test stands for, what was got and
what was expected, a signature that was changed, the loop that never ends."""

from __future__ import annotations

import ast
import functools
import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from course.labs import LAB_PATH, functions

TITLE = "what this test says"
_TEST = re.compile(r"`(test_\w+)`")
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 12


@dataclass(frozen=True)
class Claim:
    """A row of the README's table "What the tests prove", with the line where it stands."""

    text: str
    line: int


def claims(readme: Path) -> dict[str, Claim]:
    """Test name -> its row of the table "What the tests prove"; empty where there is no README."""
    try:
        lines = readme.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    found: dict[str, Claim] = {}
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("## "):
            inside = line.strip() == "## What the tests prove"
        elif inside and line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for name in _TEST.findall(cells[0]) if len(cells) > 1 else ():
                found.setdefault(name, Claim(cells[1].replace("\\|", "|"), number))
    return found


@functools.lru_cache(maxsize=8)
def _claims(readme: Path, _changed: int) -> dict[str, Claim]:
    return claims(readme)


def claim_of(test_file: Path, test: str) -> str:
    """``README.md:117 says: ...`` for a test (its parameters are dropped), "" where no row names it."""
    readme = test_file.with_name("README.md")
    row = _claims(readme, readme.stat().st_mtime_ns).get(test.partition("[")[0]) if readme.is_file() else None
    return f"{short(readme)}:{row.line}: {row.text}" if row else ""


def short(path: Path) -> str:
    """The path from the phase's folder on, with slashes."""
    match = LAB_PATH.search(path.as_posix())
    return path.as_posix()[match.start() :] if match else path.name


def comparison(op: str, left: object, right: object, source: str) -> str:
    """``got``, ``expected``: the two sides of the comparison that failed. ``source`` is the assert statement; where
    only the left side is a literal, the sides change places."""
    got, wanted = left, right
    mirror = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    if op in (*mirror, "==", "!=") and _literal_first(source):
        got, wanted, op = right, left, mirror.get(op, op)
    expected = _show(wanted) if op in ("==", "is") else f"something {op} {_show(wanted)}"
    return f"got       {_show(got)}\nexpected  {expected}"


def _show(value: object) -> str:
    try:
        text = _SHORT.repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text.replace("\n", "\n          ")


def _literal_first(source: str) -> bool:
    try:
        pairs = [(n.left, n.comparators[-1]) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Compare)]
    except SyntaxError:
        return False
    return bool(pairs) and all(_is_literal(left) and not _is_literal(right) for left, right in pairs)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def assert_source(path: Path, line: int) -> str:
    """The assert statement that covers a line of a file, on its own; "" where there is none."""
    found = ""
    for node in _walk(path):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = ast.unparse(node)
    return found


def _walk(path: Path) -> Iterator[ast.AST]:
    try:
        return ast.walk(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return iter(())


def signatures(path: Path) -> dict[str, str]:
    """Functions and methods of a file -> their parameters without annotations; empty where it does not parse."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    for name, node in functions(tree):
        for each in ast.walk(node.args):
            if isinstance(each, ast.arg):
                each.annotation = None
        found[name] = f"({ast.unparse(node.args)})"
    return found


def changed_signatures(starter: Path, solution: Path) -> list[str]:
    """One sentence per public function whose parameters differ from the reference's, or that is gone."""
    mine, theirs = signatures(starter), signatures(solution)
    sentences = []
    for name, want in theirs.items():
        if any(part.startswith("_") and not part.startswith("__") for part in name.split(".")):
            continue
        if name not in mine and mine:
            sentences.append(f"starter.py has no {name}{want}, which the lab calls: was it renamed or removed?")
        elif mine.get(name, want) != want:
            sentences.append(f"the signature of {name} was changed: {mine[name]} in starter.py, the lab calls {want}")
    return sentences


def hang(trace: TracebackType | None, folder: Path, test_file: Path) -> str:
    """Which loop did not end, from the stack at the time limit: the learner's innermost ``while`` (else ``for``), else
    the test's own."""
    frames = []
    while trace is not None:
        frames.append((Path(trace.tb_frame.f_code.co_filename), trace.tb_lineno, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    mine = [frame for frame in frames if frame[0] != test_file and folder in frame[0].parents]
    for kind in ((ast.While,), (ast.For, ast.AsyncFor)):
        for path, line, name in reversed(mine):
            if loop := _loop(path, line, kind):
                return f"never ends: the loop `{loop[1]}` in {name}, {short(path)}:{loop[0]} (it was at line {line})"
    if mine:
        path, line, name = mine[-1]
        return f"still at {short(path)}:{line} in {name}: does it wait, or call itself without end?"
    for path, line, _ in reversed(frames):
        if path == test_file and (loop := _loop(path, line, (ast.While, ast.For))):
            return f"the test's loop `{loop[1]}` ({short(path)}:{loop[0]}) waits for your code to come to an end"
    return ""


def _loop(path: Path, line: int, kinds: Sequence[type[ast.stmt]]) -> tuple[int, str] | None:
    """(line, head) of the innermost loop around a line."""
    best: ast.stmt | None = None
    for node in _walk(path):
        if not isinstance(node, ast.stmt) or not isinstance(node, tuple(kinds)):
            continue
        if not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if best is None or node.lineno > best.lineno:
            best = node
    if best is None:
        return None
    return best.lineno, path.read_text(encoding="utf-8").splitlines()[best.lineno - 1].strip()
