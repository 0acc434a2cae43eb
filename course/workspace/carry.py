"""What a learner wrote in earlier phases goes with her into the next workspace.

A file that she edited is taken as it is, helpers and imports included; a function in it that she has not written yet
is filled with the engine's own. Then the new phase takes out its bodies. Where the engine's file has changed since her
workspace was made, only her functions are put into the new file.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from course.labs import LabError, functions, stub_message
from course.loop.outcomes import digest


@dataclass
class Carried:
    """Earlier work, ready for a new workspace.

    Attributes:
        files: path in the workspace -> source.
        written: functions that are hers, "module:name". filled: those that she had not written: the engine's stand in.
    """

    files: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)


def carry(
    workspace: Path, edited: list[str], taught: dict[str, list[str]], made_from: dict[str, str], root: Path
) -> Carried:
    """Collect earlier work.

    Args:
        workspace: hers, of an earlier phase.
        edited: files there that are not as they were made.
        taught: file -> functions in it that phases up to hers teach.
        made_from: file -> `digest` of the text of the engine's file when the workspace was made.
        root: the repository.

    Raises:
        LabError: a file of hers is not Python; it names the file and the line.
    """
    carried = Carried()
    for name in edited:
        path = workspace / name
        if not path.is_file():
            continue
        hers, ours = path.read_text(encoding="utf-8"), root / name
        _parse(name, hers)
        if not ours.is_file():
            carried.files[name] = hers
            continue
        engine = ours.read_text(encoding="utf-8")
        whole = made_from.get(name) == digest(engine)
        source = hers if whole else engine
        mine, theirs = _functions(name, hers), _functions(name, engine)
        for function in taught.get(name, []):
            if function not in mine or function not in theirs:
                continue
            if _text(hers, mine[function]) == _text(engine, theirs[function]):
                continue
            symbol = f"{name.removesuffix('.py').replace('/', '.')}:{function}"
            if stub_message(mine[function]) is None:
                carried.written.append(symbol)
                source = source if whole else replace_function(source, function, _text(hers, mine[function]))
            else:
                carried.filled.append(symbol)
                source = replace_function(source, function, _text(engine, theirs[function])) if whole else source
        carried.files[name] = source
    return carried


def replace_function(source: str, name: str, text: str) -> str:
    """`source` with the function called `name` (dotted) replaced by the lines `text`."""
    node = _functions("", source)[name]
    first, last = _span(node)
    lines = source.splitlines(keepends=True)
    return "".join([*lines[:first], text, *lines[last:]])


def _span(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """First line (decorators included) and the line after the last, counted from 0."""
    assert node.end_lineno is not None
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1, node.end_lineno


def _text(source: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    first, last = _span(node)
    text = "".join(source.splitlines(keepends=True)[first:last])
    return text if text.endswith("\n") else text + "\n"


def _functions(name: str, source: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return dict(functions(_parse(name, source)))


def _parse(name: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise LabError(f"workspace/{name}, line {error.lineno}: {error.msg}; mend it before you go on") from None
