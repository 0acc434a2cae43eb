"""`course diff`: the learner's functions and the reference's, side by side or one below the other."""

import ast
import difflib
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from course.labs import functions

MARKS = {"equal": " ", "replace": "|", "delete": "<", "insert": ">"}


def bodies(path: Path) -> dict[str, list[str]]:
    """Functions of a file -> their lines, without docstrings (both files have the same). Raises ``SyntaxError``."""
    source = path.read_text(encoding="utf-8")
    lines, found = source.splitlines(), {}
    for name, node in functions(ast.parse(source)):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        skip: range = range(0)
        if ast.get_docstring(node, clean=False) is not None:
            skip = range(node.body[0].lineno - 1, node.body[0].end_lineno or 0)
        kept = [lines[i] for i in range(first, node.end_lineno or first + 1) if i not in skip]
        found[name] = textwrap.dedent("\n".join(kept)).splitlines()
    return found


def rows(mine: list[str], theirs: list[str]) -> Iterator[tuple[str, str, str]]:
    """(left, mark, right) lines; the mark is `` `` where they agree, ``|``, ``<`` or ``>`` where not."""
    for kind, a, b, c, d in difflib.SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        left, right = mine[a:b], theirs[c:d]
        for i, (one, two) in enumerate(zip_longest(left, right, fillvalue="")):
            mark = MARKS[kind] if i < min(len(left), len(right)) or kind != "replace" else "<" if i < len(left) else ">"
            yield one, mark, two


def side_by_side(mine: list[str], theirs: list[str], width: int) -> Iterator[str]:
    """Plain lines of two columns; what is too long goes on in the next line."""
    column = max(20, (width - 3) // 2)
    for left, mark, right in rows(mine, theirs):
        lefts, rights = ([line[i : i + column] for i in range(0, len(line) or 1, column)] for line in (left, right))
        for one, two in zip_longest(lefts, rights, fillvalue=""):
            yield f"{one:<{column}} {mark} {two}".rstrip()


def compare(starter: Path, solution: Path, width: int) -> Iterator[str]:
    """Functions that agree by name only, the others in full; below 100 columns as a unified diff."""
    try:
        mine = bodies(starter)
    except SyntaxError as error:
        yield f"starter.py:{error.lineno} does not parse, so the files are compared as a whole"
        mine, theirs = ({"the file": p.read_text(encoding="utf-8").splitlines()} for p in (starter, solution))
    else:
        theirs = bodies(solution)
    if same := [name for name in theirs if _code(mine.get(name)) == _code(theirs[name])]:
        yield f"as in the reference: {', '.join(same)}"
    for name in [n for n in theirs if n not in same] + [n for n in mine if n not in theirs]:
        left, right = mine.get(name, []), theirs.get(name, [])
        yield ""
        if width >= 100:
            column = max(20, (width - 3) // 2)
            yield f"{f'--- {name}, yours ':-<{column}}   {f'--- {name}, the reference ':-<{column}}"
            yield from side_by_side(left, right, width)
        else:
            yield f"--- {name}: - yours, + the reference"
            yield from (line for line in difflib.ndiff(left, right) if not line.startswith("?"))


def _code(lines: list[str] | None) -> str | None:
    """What the lines do, whatever their spacing and comments."""
    try:
        return None if lines is None else ast.dump(ast.parse("\n".join(lines)))
    except SyntaxError:
        return "\n".join(lines or [])
