"""The result as a table, CSV, JSON or JUnit XML. No times, no paths: two runs of one class give the same bytes."""

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from course.grade.grading import Grades, LabResult
from course.labs import Lab

FORMATS = ("table", "csv", "json", "junit")
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WIDE = 10_000
_NAME, _POINTS, _FRAME = 30, 6, 3
"""Columns of a table that a long name may take, of the points, and of a cell's frame and margin."""


def cell(row: LabResult) -> str:
    """``14/17`` where graded, else the status."""
    late = f" ×{row.late:g}" if row.late < 1 else ""
    return (f"{row.passed}/{len(row.tests)}" if row.status == "graded" else row.status) + late


def points(grades: Grades, name: str, form: str) -> str:
    """A submission's points; ``?`` behind them where a lab is held, and is not counted until someone has decided."""
    held = any(row.status == "held" for row in grades.of(name))
    return f"{grades.total(name):{form}}" + ("?" if held else "")


def notes(grades: Grades) -> list[str]:
    """Everything that a person should read: problems of intake, findings, look-alikes, missing walls."""
    found = [f"{s.name}: {text}" for s in grades.submissions for text in s.problems]
    found += [f"{r.submission}, {r.lab.name.split()[0]}: {r.status}: {t}" for r in grades.rows for t in r.findings]
    number = {lab.key: lab.name.split()[0] for lab in grades.labs}
    where = {pair: ", ".join(number[key] for key in pair.labs) for pair in grades.pairs}
    found += [f"{p.first} and {p.second}: {p.share:.0%} alike ({where[p]})" for p in grades.pairs]
    found += [f"not graded: {text}" for text in grades.skipped]
    found += [lacking(grades.missing)] if grades.missing else []
    return [_CONTROL.sub("?", text) for text in found]


def lacking(missing: Sequence[str]) -> str:
    """One line about the walls that this machine does not have."""
    return f"walls missing on this machine: {'; '.join(missing)}"


def render(grades: Grades, form: str, width: int = _WIDE) -> str:
    """The report in one of ``FORMATS``; ``width``: columns of the terminal that a table is for."""
    writers: dict[str, Callable[[Grades], str]] = {"csv": _csv, "json": _json, "junit": _junit}
    return _table(grades, width) if form == "table" else writers[form](grades)


def _table(grades: Grades, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    names = {submission.name: escape(submission.name) for submission in grades.submissions}
    rows = {name: {row.lab: cell(row) for row in grades.of(name)} for name in names}
    for labs in _blocks(grades.labs, rows, width):
        last = labs[-1:] == grades.labs[-1:]
        heads = [Column(lab.name.split()[0], justify="right", no_wrap=True) for lab in labs]
        heads += [Column("points", justify="right", no_wrap=True)] if last else []
        table = Table(Column("submission", max_width=_NAME, overflow="fold"), *heads)
        for name, shown in names.items():
            total = [points(grades, name, ".1f")] if last else []
            table.add_row(shown, *(escape(rows[name].get(lab, "")) for lab in labs), *total)
        console.print(table)
    lines = [textwrap.fill(text, width, subsequent_indent="    ", break_long_words=False) for text in notes(grades)]
    return str(console.file.getvalue()) + "".join(f"{line}\n" for line in lines)  # type: ignore[attr-defined]


def _blocks(labs: Sequence[Lab], rows: dict[str, dict[Lab, str]], width: int) -> Iterator[list[Lab]]:
    """The labs, as many at a time as a table of ``width`` columns has room for; behind the last come the points."""
    name = min(_NAME, max(map(len, [*rows, "submission"])))
    room = free = width - 1 - (name + _FRAME) - (_POINTS + _FRAME)
    block: list[Lab] = []
    for lab in labs:
        need = max(len("00-00"), *(len(cells.get(lab, "")) for cells in rows.values()), 0) + _FRAME
        if block and need > free:
            yield block
            block, free = [], room
        block, free = [*block, lab], free - need
    yield block


def _csv(grades: Grades) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    numbers = [lab.name.split()[0] for lab in grades.labs]
    writer.writerow(["submission", "points", *(f"{n} {what}" for n in numbers for what in ("points", "status"))])
    for submission in grades.submissions:
        rows = grades.of(submission.name)
        name = submission.name if submission.name[:1] not in "=+-@\t" else f"'{submission.name}"  # for spreadsheets
        cells = [t for r in rows for t in ("" if r.status == "held" else f"{100 * r.share:.2f}", r.status)]
        writer.writerow([name, points(grades, submission.name, ".2f"), *cells])
    return out.getvalue()


def _json(grades: Grades) -> str:
    rows = [_json_row(grades, submission.name, submission.problems) for submission in grades.submissions]
    pairs = [{"first": p.first, "second": p.second, "share": p.share, "labs": list(p.labs)} for p in grades.pairs]
    whole = {"submissions": rows, "similar": pairs, "not_graded": grades.skipped}
    return json.dumps(whole | {"walls": grades.walls, "missing_walls": grades.missing}, indent=1) + "\n"


def _json_row(grades: Grades, name: str, problems: list[str]) -> dict[str, Any]:
    labs = {
        row.lab.key: {
            "status": row.status,
            "points": None if row.status == "held" else round(100 * row.share, 2),
            "passed": row.passed,
            "tests": {test: {"outcome": outcome, "message": text} for test, (outcome, text) in row.tests.items()},
            "total": len(row.tests),
            "late_factor": row.late,
            "weight": grades.settings.weight(row.lab),
            "findings": list(row.findings),
        }
        for row in grades.of(name)
    }
    held = [row.lab.key for row in grades.of(name) if row.status == "held"]
    return {"name": name, "points": round(grades.total(name), 2), "problems": problems, "held": held, "labs": labs}


def _junit(grades: Grades) -> str:
    top = ElementTree.Element("testsuites", name="course grade")
    problems = {submission.name: submission.problems for submission in grades.submissions}
    for row in grades.rows:
        held, name = row.status == "held", _CONTROL.sub("?", f"{row.submission} {row.lab.key}")
        red = str(len(row.tests) - row.passed)
        numbers = {"failures": "0" if held else red, "errors": "0", "skipped": red if held else "0"}
        counts = {"name": name, "tests": str(len(row.tests)), **numbers}
        suite = ElementTree.SubElement(top, "testsuite", counts)
        for test, (outcome, text) in row.tests.items():
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=_CONTROL.sub("?", test))
            if outcome != "passed" or row.status != "graded":
                words = f"{outcome}: {text}" if row.status == "graded" else f"{row.status}: {'; '.join(row.findings)}"
                kind = {"message": _CONTROL.sub("?", words)} | ({} if held else {"type": outcome})
                ElementTree.SubElement(case, "skipped" if held else "failure", kind)
        if lines := [*problems.get(row.submission, ()), *row.findings]:
            ElementTree.SubElement(suite, "system-out").text = _CONTROL.sub("?", "\n".join(lines))
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="unicode", xml_declaration=True) + "\n"
