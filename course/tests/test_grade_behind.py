"""Each attack behind an untouched starter and behind an empty answer, through the whole `course grade`: no point."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course import cli
from course.labs import Lab, find_labs, functions, stub_message
from course.tests.attacks_own import OWN
from course.tests.test_grade import linux

pytestmark = pytest.mark.maintainer

LABS = [lab for name in ("00-02", "02-01", "09-01") for lab in find_labs(name)]


def starter(lab: Lab) -> str:
    return (lab.folder / "starter.py").read_text(encoding="utf-8")


def empty(lab: Lab) -> str:
    """The starter in which each function to write is there, and gives nothing."""
    tree = ast.parse(starter(lab))
    for _, node in functions(tree):
        if stub_message(node) is not None:
            node.body = [ast.Return(ast.Constant(None))]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


@linux
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_attack_has_a_point_behind_a_starter_or_an_empty_answer(tmp_path: Path) -> None:
    folder, out = tmp_path / "class", tmp_path / "marks.json"
    for kind, text in (("starter", starter), ("empty", empty)):
        for lab in LABS:
            top = text(lab) + ("import numpy as np\n" if "numpy" in lab.allowed_imports else "")
            for name, body in [("-alone", ""), *((name, body) for name, (body, _) in OWN.items())]:
                place = folder / f"{kind}-{name}" / lab.phase / "labs" / lab.slug
                place.mkdir(parents=True)
                (place / "starter.py").write_text(top + body, encoding="utf-8")
    chosen = ",".join(lab.number for lab in LABS)
    asked = ["grade", str(folder), "--labs", chosen, "--format", "json", "-o", str(out), "--similarity", "0"]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    rows = {
        (one["name"], key): (lab["status"], lab["passed"])
        for one in json.loads(out.read_text(encoding="utf-8"))["submissions"]
        for key, lab in one["labs"].items()
    }
    assert len(rows) == 2 * (len(OWN) + 1) * len(LABS)
    assert all(passed == 0 for (name, _), (_, passed) in rows.items() if name == "starter--alone")
    won = {
        place: row
        for place, row in rows.items()
        if row[0] == "graded" and row[1] > rows[f"{place[0].partition('-')[0]}--alone", place[1]][1]
    }
    assert won == {}
    assert sum(status in ("held", "tampered") for status, _ in rows.values()) >= 0.9 * len(rows)
