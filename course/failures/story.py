"""A failed lab test, told in a few lines: what is wrong, what was got and what was expected, where in the learner's
file, and which sentence of the README the test stands for.

The learner sees it in place of a traceback (``--tb=short`` brings the traceback back); who runs the solutions sees it
below the traceback. A story is a dict of plain values, so that it travels between pytest-xdist's processes."""

import ast
import linecache
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from course.failures import asserted, teach

LABEL = 10  # columns of the labels
PRINTED = 8  # last lines of what the learner's code printed
MAX_VALUE = 400  # characters of one row
Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Place:
    """A frame of the traceback: file, line, function, and its variables."""

    path: Path
    line: int
    function: str
    values: Mapping[str, Any]

    @property
    def source(self) -> str:
        return linecache.getline(str(self.path), self.line).strip()

    def __str__(self) -> str:
        return f"{teach.short(self.path)}:{self.line}"


def tell(item: pytest.Item, error: pytest.ExceptionInfo[BaseException], compared: tuple[str, Any, Any] | None) -> dict:
    """The story of a failure: ``headline``, ``rows`` of (label, text), and ``group``: failures of one group have one
    cause. ``compared`` are operator and sides of the comparison that failed last, where one did."""
    places = [Place(Path(e.path), e.lineno + 1, e.name, {**e.frame.f_globals, **e.locals}) for e in error.traceback]
    test = next((p for p in reversed(places) if p.path == item.path), None)
    folder = item.path.parent
    mine = next((p for p in reversed(places) if p.path.parent == folder and p.path != item.path), None)
    last: Rows = [("README", teach.claim_of(item.path, item.name)), ("test", str(test or ""))]
    group = item.nodeid.partition("[")[0]
    if timed_out(error):
        headline = teach.hang(error.tb, folder, item.path) or "it does not come to an end"
        limit = re.search(r">\s*([\d.]+)", str(error.value))
        stopped = f"after {float(limit[1]):g} s, the limit of a test" if limit else "at the time limit of a test"
        return _story(headline, [("stopped", stopped), *_call(test)], last, f"hang {headline}")
    for sentence in _changed(error, folder):
        return _story(sentence, [("got", _one_line(error)), *_call(test)], last, sentence)
    if (places and mine is places[-1] and not isinstance(error.value, AssertionError)) or test is None:
        return _story(*_exception(error, mine, test), last, f"{error.typename} {mine}" if mine else group)
    if isinstance(error.value, AssertionError) and test is places[-1]:
        return _story(*_assertion(error, test, compared), last, group)
    if not isinstance(error.value, (AssertionError, pytest.fail.Exception)):
        return _story(*_exception(error, mine, test), last, group)
    return _story(*_helper(error, places, test, mine), last, group)


def timed_out(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether the test was ended by its time limit."""
    return isinstance(error.value, pytest.fail.Exception) and str(error.value).startswith("Timeout")


def _story(headline: str, rows: Rows, last: Rows, group: str) -> dict:
    return {"headline": headline, "rows": [list(row) for row in (*rows, *last) if row[1]], "group": group}


def _one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = re.sub(r"module 'lab_phase\w+_(starter|solution)_\w+'", r"\1.py", error.exconly())
    return _cut(re.sub(r"lab_phase\w+_(?:starter|solution)_[0-9a-f]{8}\.", "", text).replace("\n", " "))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 4] + " ..."


def _call(test: Place | None) -> Rows:
    node = teach.statement_at(test.path, test.line, ast.stmt) if test else None
    return [("called as", _cut(_code(node) or test.source))] if test else []


def _code(node: ast.AST | None) -> str:
    """A statement on one line; of a compound one only its head."""
    lines = ast.unparse(node).splitlines() if node else []
    return lines[0] if hasattr(node, "body") else " ".join(lines)


def _changed(error: pytest.ExceptionInfo[BaseException], folder: Path) -> list[str]:
    """Sentences about names of the starter that were changed and that the error names."""
    if not error.errisinstance((TypeError, AttributeError, NameError)):
        return []
    changed = teach.changed_names(folder / "starter.py", folder / "solution.py")
    words = set(re.findall(r"\w+", str(error.value)))
    return [text for name, text in changed.items() if {name.rpartition(".")[2], name.partition(".")[0]} & words]


def _exception(error: pytest.ExceptionInfo[BaseException], mine: Place | None, test: Place | None) -> tuple[str, Rows]:
    """An exception that nobody expected: from the learner's code, or from a test that used what it gave back."""
    rows: Rows = []
    if mine is not None:
        rows = [("raised in", f"{mine.function}, {mine}"), ("line", mine.source), ("with", _arguments(mine))]
    got = _one_line(error)
    if isinstance(error.value, SystemExit):
        rows.append(("note", "your code ended the program; return a value, or raise an error, instead"))
    elif "NoneType" in got and mine is None and not (test and teach.may_be_none(test.path, test.line)):
        rows.append(("note", "None came back from your code: is a `return` missing?"))
    return got, [*rows, ("expected", _wanted(test)), *_call(test)]


def _arguments(place: Place) -> str:
    """The parameters of the function with their values at the end, without ``self``."""
    node = teach.statement_at(place.path, place.line, ast.FunctionDef)
    if node is None:
        return ""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if a.arg != "self"]
    return _cut(", ".join(f"{n} = {asserted.show(place.values[n], 256)}" for n in names if n in place.values))


def _assertion(
    error: pytest.ExceptionInfo[BaseException], test: Place, compared: tuple[str, Any, Any] | None
) -> tuple[str, Rows]:
    """An assert of the test that is false."""
    statement = teach.statement_at(test.path, test.line, ast.Assert)
    text = str(error.value)
    if statement is None:
        return text, []
    checked, message = ast.unparse(statement.test), text.partition("\nassert ")[0]
    rows = asserted.call_rows(statement, test.values)
    if not rows and compared:
        rows = asserted.rows(*compared, ast.unparse(statement))
    rows = rows or [("got", "False"), ("expected", "True")]
    if any(row == ("got", "None") for row in rows) and not teach.may_be_none(test.path, test.line):
        rows.append(("note", "None came back: is a `return` missing?"))
    if statement.msg is None or message.startswith("assert "):
        return f"this does not hold: {_cut(checked)}", rows
    return message, [("checked", _cut(checked)), *rows]


def _wanted(test: Place | None) -> str:
    """The exception that the test asks for at this place; "" where it asks for none."""
    node = teach.statement_at(test.path, test.line, ast.With) if test else None
    for call in [each.context_expr for each in node.items] if node else []:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises":
            match = next((ast.unparse(k.value) for k in call.keywords if k.arg == "match"), "")
            return f"{ast.unparse(call.args[0])}, whose text matches {match}" if match else ast.unparse(call.args[0])
    return ""


def _helper(
    error: pytest.ExceptionInfo[BaseException], places: Sequence[Place], test: Place, mine: Place | None
) -> tuple[str, Rows]:
    """A failure that a helper reports: ``pytest.raises``, ``numpy.testing``, an assert in the learner's code."""
    text = str(error.value).strip()
    if wanted := _wanted(test):
        node = teach.statement_at(test.path, test.line, ast.With)
        call = ("called as", _cut(_code(node.body[-1]))) if node else ("", "")
        said = re.search(r"^(?:\s*(?:Input|Actual message): |- )(.*)$", text, re.M)  # "- ": a diff, of literal texts
        if said or text.startswith("DID NOT RAISE"):
            got = f"a text that does not match: {said[1]}" if said else "no exception"
            return "the wrong text" if said else "nothing was raised", [("got", got), ("expected", wanted), call]
    numpys = next((p for p in places if p.path.parent.name in ("_private", "testing") and _sides(p)), None)
    if numpys is not None:
        return _arrays(text, numpys, test)
    return _exception(error, mine, test) if mine is not None and mine is places[-1] else (_cut(text), _call(test))


def _sides(place: Place) -> tuple[Any, Any] | None:
    for names in (("actual", "desired"), ("x", "y")):
        if all(name in place.values for name in names):
            return place.values[names[0]], place.values[names[1]]
    return None


def _arrays(text: str, numpys: Place, test: Place) -> tuple[str, Rows]:
    """A failure of numpy.testing, from the sides that it was given."""
    sides = _sides(numpys)
    assert sides is not None
    message = str(numpys.values.get("err_msg", "")).strip()
    rows: Rows = [("got", asserted.show(sides[0])), ("expected", asserted.show(sides[1]))]
    differ = asserted.first_difference(*sides)
    if sides[0] is None and not teach.may_be_none(test.path, test.line):
        rows.append(("note", "None came back: is a `return` missing?"))
    first = next((line for line in text.splitlines() if line.strip()), "the arrays differ")
    return message or first, [*_call(test), *rows, ("differ", differ)]


def lacks(story: dict) -> str:
    """What a story fails to say: the README's claim, or what was got and expected; "" where it says both."""
    labels = {label for label, _ in story["rows"]}
    if "README" not in labels:
        return 'no row of the README\'s table "What the tests prove" names it'
    error = re.match(r"(?:\w+\.)*[A-Z]\w*(Error|Exit|Exception|Interrupt|Warning)\b", story["headline"])
    called = "called as" in labels and (error or "got" in labels)
    told = {"got", "expected"} <= labels or "stopped" in labels or called
    return "" if told else "its failure says neither what was got nor what was expected"


def render(story: dict, width: int = 100) -> list[str]:
    """The lines of a story, folded to ``width`` columns; paths stay whole."""
    lines = textwrap.wrap(story["headline"], width) or [""]
    for label, text in story["rows"]:
        first = True
        for part in text.splitlines():
            wide = max(30, width - LABEL - 4)
            for piece in textwrap.wrap(part, wide, break_on_hyphens=False, break_long_words=False) or [""]:
                lines.append(f"  {label if first else '':<{LABEL}}{piece}".rstrip())
                first = False
    return lines
