"""What files say about a failed lab test: the claim of the README that it stands for, the statement that failed, a
signature that was changed, the loop that never ends. ``course.failures.story`` puts it together."""

import ast
import functools
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from course.labs import NOTHING, functions, parsed, short

TITLE = "what this test says"
Node = TypeVar("Node", bound=ast.AST)
_TEST = re.compile(r"`(test_\w+)`")


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
    """What the README claims of a test, and in a second line where; "" where no row names it."""
    readme = test_file.with_name("README.md")
    row = _claims(readme, readme.stat().st_mtime_ns).get(test.partition("[")[0]) if readme.is_file() else None
    return f"{row.text}\n{short(readme)}:{row.line}" if row else ""


def statement_at(path: Path, line: int, kind: type[Node]) -> Node | None:
    """The innermost statement of a kind that covers a line of a file; None where there is none."""
    found = None
    for node in _walk(path):
        if isinstance(node, kind) and node.lineno <= line <= (node.end_lineno or node.lineno):  # type: ignore[attr-defined]
            found = node
    return found


def _walk(path: Path) -> Iterator[ast.AST]:
    return ast.walk(parsed(path) or NOTHING)


def signatures(path: Path) -> dict[str, str]:
    """Functions and methods of a file -> their parameters without annotations; empty where it does not parse."""
    found = {}
    for name, node in functions(parsed(path) or NOTHING):
        for each in ast.walk(node.args):
            if isinstance(each, ast.arg):
                each.annotation = None
        found[name] = f"({ast.unparse(node.args)})"
    return found


def changed_names(starter: Path, solution: Path) -> dict[str, str]:
    """Public names that the lab calls and that differ from the reference's: name -> a sentence."""
    from course.contract.rules import public

    trees = parsed(starter), parsed(solution)
    if not all(trees):
        return {}
    mine, theirs = map(public, filter(None, trees))
    if not mine:
        return dict.fromkeys(theirs, "starter.py defines nothing: `course reset` brings the original back")
    have, want = signatures(starter), signatures(solution)
    found: dict[str, str] = {}
    for name in theirs:
        if name.rpartition(".")[0] in found:  # its class is gone
            continue
        if name not in mine:
            what = f"{name}{want.get(name, '')}"
            found[name] = f"starter.py has no {what}, which the lab calls: was it renamed or removed?"
        elif have.get(name) != want.get(name):
            found[name] = (
                f"the signature of {name} was changed: {have.get(name, 'no function')} in starter.py, "
                f"the lab calls {want.get(name, 'no function')}"
            )
    return found


def hang(trace: TracebackType | None, folder: Path, test_file: Path) -> str:
    """Which loop did not end: the learner's innermost ``while`` (else ``for``), else the test's own."""
    frames = [(Path(f.f_code.co_filename), line, f.f_code.co_name) for f, line in traceback.walk_tb(trace)]
    mine = [frame for frame in frames if frame[0] != test_file and folder in frame[0].parents]
    for kind in ((ast.While,), (ast.For, ast.AsyncFor)):
        for path, line, name in reversed(mine):
            if loop := _loop(path, line, kind):
                at = f" (it was at line {line})" if line != loop[0] else ""
                return f"never ends: the loop `{loop[1]}` in {name}, {short(path)}:{loop[0]}{at}"
    if mine:
        path, line, name = mine[-1]
        return f"still at {short(path)}:{line} in {name}: does it wait, or call itself without end?"
    for path, line, _ in reversed(frames):
        if path == test_file and (loop := _loop(path, line, (ast.While, ast.For))):
            return f"the test's loop `{loop[1]}` ({short(path)}:{loop[0]}) waits for your code to come to an end"
    return ""


def may_be_none(test_file: Path, line: int) -> bool:
    """Whether a statement of a test names a function of the starter whose annotation allows None."""
    words = set(re.findall(r"\w+", ast.unparse(statement_at(test_file, line, ast.stmt) or NOTHING)))
    mine = functions(parsed(test_file.with_name("starter.py")) or NOTHING)
    return any("None" in ast.unparse(node.returns or NOTHING) for _, node in mine if node.name in words)


def _loop(path: Path, line: int, kinds: Sequence[type[ast.stmt]]) -> tuple[int, str] | None:
    """(line, head) of the innermost loop around a line."""
    around = [node for kind in kinds if (node := statement_at(path, line, kind)) is not None]
    if not around:
        return None
    best = max(around, key=lambda node: node.lineno)
    return best.lineno, path.read_text(encoding="utf-8").splitlines()[best.lineno - 1].strip()
