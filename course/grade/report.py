"""The result as a table, CSV, JSON or JUnit XML. No times, no paths: two runs of one class give the same bytes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from course.grade.grading import Grades, LabResult

FORMATS = ("table", "csv", "json", "junit")
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def cell(row: LabResult) -> str:
    """``14/17`` where graded, else the status."""
    late = f" ×{row.late:g}" if row.late < 1 else ""
    return (f"{row.passed}/{len(row.tests)}" if row.status == "graded" else row.status) + late


def notes(grades: Grades) -> list[str]:
    """Everything that a person should read: problems of intake, findings, look-alikes, missing walls."""
    found = [f"{s.name}: {text}" for s in grades.submissions for text in s.problems]
    found += [f"{r.submission}, {r.lab.name.split()[0]}: {r.status}: {t}" for r in grades.rows for t in r.findings]
    number = {lab.key: lab.name.split()[0] for lab in grades.labs}
    where = {pair: ", ".join(number[key] for key in pair.labs) for pair in grades.pairs}
    found += [f"{p.first} and {p.second}: {p.share:.0%} alike ({where[p]})" for p in grades.pairs]
    return found + [f"not graded: {text}" for text in grades.skipped] + [f"note: {text}" for text in grades.missing]


def render(grades: Grades, form: str) -> str:
    """The report in one of ``FORMATS``."""
    writers: dict[str, Callable[[Grades], str]] = {"table": _table, "csv": _csv, "json": _json, "junit": _junit}
    return writers[form](grades)


def _table(grades: Grades) -> str:
    table = Table("submission", *(lab.name.split()[0] for lab in grades.labs), "points")
    for submission in grades.submissions:
        cells = [cell(row) for row in grades.of(submission.name)]
        table.add_row(*map(escape, [submission.name, *cells, f"{grades.total(submission.name):.1f}"]))
    console = Console(file=io.StringIO(), width=max(100, 32 + 12 * len(grades.labs)), force_terminal=False)
    console.print(table)
    for text in notes(grades):
        console.print(_CONTROL.sub("?", text), markup=False, highlight=False, soft_wrap=True)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def _csv(grades: Grades) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    numbers = [lab.name.split()[0] for lab in grades.labs]
    writer.writerow(["submission", *(f"{n} passed" for n in numbers), *(f"{n} status" for n in numbers), "points"])
    for submission in grades.submissions:
        rows = grades.of(submission.name)
        name = submission.name if submission.name[:1] not in "=+-@\t" else f"'{submission.name}"  # for spreadsheets
        passed = [f"{row.late * row.passed:g}" for row in rows]
        writer.writerow([name, *passed, *(row.status for row in rows), f"{grades.total(submission.name):.2f}"])
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
            "passed": row.passed,
            "tests": {test: {"outcome": outcome, "message": text} for test, (outcome, text) in row.tests.items()},
            "total": len(row.tests),
            "late_factor": row.late,
            "weight": grades.settings.weight(row.lab),
            "findings": list(row.findings),
        }
        for row in grades.of(name)
    }
    return {"name": name, "points": round(grades.total(name), 2), "problems": problems, "labs": labs}


def _junit(grades: Grades) -> str:
    top = ElementTree.Element("testsuites", name="course grade")
    for row in grades.rows:
        failures = len(row.tests) - row.passed
        suite = ElementTree.SubElement(
            top, "testsuite", name=_CONTROL.sub("?", f"{row.submission} {row.lab.key}"), tests=str(len(row.tests)),
            failures=str(failures), errors="0", skipped="0",
        )  # fmt: skip
        for test, (outcome, text) in row.tests.items():
            case = ElementTree.SubElement(suite, "testcase", classname=row.lab.key, name=_CONTROL.sub("?", test))
            if outcome != "passed" or row.status != "graded":
                words = f"{outcome}: {text}" if row.status == "graded" else f"{row.status}: {'; '.join(row.findings)}"
                ElementTree.SubElement(case, "failure", message=_CONTROL.sub("?", words))
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="unicode", xml_declaration=True) + "\n"
