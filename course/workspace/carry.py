"""What a learner wrote in earlier phases goes with her into the next workspace.

A file that she edited is taken as it is, helpers and imports included; a function in it that she has not written yet
is filled with the engine's own. Then the new phase takes out its bodies. Where the engine's file has changed since her
workspace was made, git merges the three texts: the engine's as it was, hers, and the engine's as it is. What cannot be
carried is named: nothing of hers is dropped without a word."""

import ast
import io
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from course.labs import LabError, functions, stub_message
from course.loop import gitwork
from course.loop.outcomes import digest

ENGINE = "mini_vllm/"
MADE = ("conftest.py",)
BOTH = "you and the engine changed the same lines beside what is yours to write; there the engine's stand"
UNKNOWN = "the engine's file has changed, and this clone does not know its former text; only your functions go along"


@dataclass
class Carried:
    """Earlier work, ready for a new workspace.

    Attributes:
        files: path in the workspace -> source.
        written: functions that are hers, "module:name". filled: those that she had not written: the engine's stand in.
        own: files of hers that the engine does not have.
        left: what was not carried, with the reason.
    """

    files: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def told(self, kept: str) -> list[str]:
        """Lines for the learner; ``kept`` is the path of her former workspace."""
        rows = (
            ("Yours, carried over", self.written),
            ("Not written yet, so ours", self.filled),
            ("Your own files, copied", self.own),
        )
        lines = [f"{words}: {', '.join(names)}" for words, names in rows if names]
        if self.left:
            lines += ["Not carried over; your text is in the copy, put it in by hand if you need it:"]
        return lines + [f"  {kept}/{each}" for each in self.left]


def carry(
    workspace: Path, edited: list[str], taught: dict[str, list[str]], made_from: dict[str, str], root: Path
) -> Carried:
    """Collect earlier work out of ``workspace``: of its files ``edited``, where ``taught`` says which functions of a
    file of the engine phases up to hers teach, and ``made_from`` the `digest` of the engine's text when the workspace
    was made. Raises :class:`LabError` where a file of hers is not Python, with file and line."""
    carried = Carried()
    for name, hers in [(name, _read(workspace, name)) for name in edited]:
        if hers is None:
            carried.left += [f"{name}: you removed it; the engine's is there again"] if name in made_from else []
        elif name.startswith(ENGINE) and (root / name).is_file():
            _of_the_engine(carried, root, name, hers, taught.get(name, []), made_from.get(name, ""))
        else:
            _own(carried, root, name, hers, name in made_from)
    return carried


def _read(workspace: Path, name: str) -> str | None:
    path = workspace / name
    try:
        text = path.read_text(encoding="utf-8-sig") if path.is_file() else None
        ast.parse(text or "")
    except SyntaxError as error:
        raise LabError(f"workspace/{name}, line {error.lineno}: {error.msg}; mend it before you go on") from None
    except ValueError as error:
        raise LabError(f"workspace/{name} is not a Python text file ({error}); mend it before you go on") from None
    return text


def _own(carried: Carried, root: Path, name: str, hers: str, known: bool) -> None:
    """A file that the engine does not have, or has no longer (``known``)."""
    inside = name.startswith(ENGINE)
    if name in MADE:
        carried.left.append(f"{name}: `course build` makes it anew")
    elif known and inside:
        carried.left.append(f"{name}: the engine has no such file any more")
    elif inside and (root / name).with_suffix("").is_dir():
        carried.left.append(f"{name}: the engine has a folder of that name now")
    else:
        carried.files[name] = hers
        carried.own.append(name)


def _of_the_engine(carried: Carried, root: Path, name: str, hers: str, taught: list[str], made_from: str) -> None:
    """Her file, in which the functions that she has not written are the engine's."""
    engine = (root / name).read_text(encoding="utf-8")
    mine, theirs = dict(functions(ast.parse(hers))), dict(functions(ast.parse(engine)))
    yours = [
        each for each in taught if each in mine and each in theirs and text_of(hers, each) != text_of(engine, each)
    ]
    for each in yours:
        symbol = f"{name.removesuffix('.py').replace('/', '.')}:{each}"
        if stub_message(mine[each]) is None:
            carried.written.append(symbol)
            continue
        carried.filled.append(symbol)
        if _notes(text_of(hers, each), text_of(engine, each)):
            carried.left.append(
                f"{name}: {each}: your notes or decorators; it is not written yet, so ours stands there"
            )
        hers = with_function(hers, each, text_of(engine, each))
    if made_from != digest(engine):
        former = gitwork.former(root, name, made_from)
        before, now = (_with(text, yours, hers) for text in (former, engine))
        both = _merged(hers, before, now) if former is not None else None
        hers, clash = both or (now, False)
        carried.left += [f"{name}: {BOTH if both else UNKNOWN}"] if clash or not both else []
    carried.files[name] = hers


def _with(source: str | None, names: list[str], hers: str) -> str:
    """A text in which the functions ``names`` are hers, where it has them."""
    source = source or ""
    for name in names:
        if name in dict(functions(ast.parse(source))):
            source = with_function(source, name, text_of(hers, name))
    return source


def _merged(hers: str, before: str, now: str) -> tuple[str, bool] | None:
    """The three texts in one, the present one's lines where two say different things, and whether there were such;
    None where the outcome is no Python."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("hers", "before", "now")
        for name, text in zip(names, (hers, before, now), strict=True):
            Path(folder, name).write_text(text, encoding="utf-8", newline="")
        try:
            merged = gitwork.git(Path(folder), "merge-file", "-p", "--theirs", *names)
            ast.parse(merged)
        except (gitwork.GitError, SyntaxError):
            return None
        try:
            gitwork.git(Path(folder), "merge-file", "-p", *names)
        except gitwork.GitError:  # its exit status counts the conflicts
            return merged, True
    return merged, False


def _span(source: str, name: str) -> tuple[list[str], int, int]:
    """Lines of a source as Python counts them, and where a function stands in them, decorators included."""
    node = dict(functions(ast.parse(source)))[name]
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
    assert node.end_lineno is not None
    return io.StringIO(source, newline="").readlines(), first, node.end_lineno


def text_of(source: str, name: str) -> str:
    """The lines of a function, decorators included; they end in a line break."""
    lines, first, last = _span(source, name)
    return "".join(lines[first:last]).rstrip("\r\n") + "\n"


def with_function(source: str, name: str, text: str) -> str:
    """``source`` with the function called ``name`` replaced by the lines ``text``."""
    lines, first, last = _span(source, name)
    return "".join([*lines[:first], text, *lines[last:]])


def _notes(stub: str, engine: str) -> bool:
    """Whether a function that is not written has comments or decorators that the engine's text of it has not."""
    known = {line.strip() for line in engine.splitlines()}
    said = [line.strip() for line in stub.splitlines() if line.strip().startswith(("#", "@"))]
    return any(line not in known for line in said)
