"""An evening's path: its page is what the phases give, its runs run, and its end is a phase."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from course import cli
from course.labs import ROOT, LabError, load, tomllib
from course.pages.markdown import read

pytestmark = pytest.mark.maintainer
ROWS = tomllib.loads((ROOT / "docs/evening.toml").read_text(encoding="utf-8"))["stop"]


@pytest.fixture(scope="module")
def tour() -> Any:
    return load(ROOT / "docs/evening_tour.py")


@pytest.fixture(scope="module")
def evening(tour: Any) -> ModuleType:
    return importlib.import_module("evening_page")


def test_the_page_is_made_from_its_data(evening: ModuleType) -> None:
    again = "python docs/evening_page.py makes it again"
    assert evening.TARGET.read_text(encoding="utf-8") == evening.page(), again


def test_eleven_stops_in_about_four_hours(evening: ModuleType) -> None:
    path = evening.stops()
    assert len(path) == 11 and 210 <= sum(each.minutes for each in path) <= 260
    assert len({each.key for each in path}) == len({each.quiz for each in path}) == len({e.picture for e in path}) == 11
    assert all(each.picture.startswith(each.phase) for each in path), "the picture is of the stop's phase"
    assert all(each.question.section in {s.link.partition("#")[2] for s in each.sections} for each in path)
    assert not re.search(r"course (test|watch)", read(evening.TARGET).text), "no lab to write"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("read", ["3.99"], "has no section 3.99"),
        ("quiz", "03/33-static-against-continuous/9", "there is no question"),
        ("picture", "phase-00-foundations/img/none.svg", "no guide shows"),
        ("box", "toaster", "the map has no box 'toaster'"),
    ],
)
def test_what_is_not_there_is_refused(evening: ModuleType, field: str, value: object, words: str) -> None:
    with pytest.raises(evening.NotThere, match=words):
        evening.stop(ROWS[0] | {field: value})


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["key"])
def test_each_run_shows_what_the_stop_says(row: dict[str, Any], evening: ModuleType, tour: Any) -> None:
    stop = evening.stop(row)
    try:
        done = tour.run_stop(stop, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    finally:
        for name in [word for word in stop.run if word.startswith("evening-")]:
            (ROOT / name).unlink(missing_ok=True)
    assert done.returncode == stop.status, done.stdout
    for shown in stop.shows:
        assert re.search(shown, done.stdout, re.M), f"{shown!r} does not stand in\n{done.stdout}"


def walk(tour: Any, typed: Iterator[str], right: dict[str, bool]) -> tuple[Any, list[str], list[str]]:
    said: list[str] = []
    ran: list[str] = []

    def ask(prompt: str) -> str:
        said.append(prompt)
        return next(typed)

    return tour.Walk(said.append, ask, lambda stop: ran.append(stop.key), right), said, ran


def test_a_stop_asks_before_it_runs_and_keeps_the_first_answer(evening: ModuleType, tour: Any) -> None:
    stop, right = evening.stops()[0], {}
    one, said, ran = walk(tour, iter(["", "54", "x", "B", "", "", "a"]), right)
    one.stop(1, stop)
    assert ran == ["loop"] and right == {"loop": True}
    text = "\n".join(said)
    assert text.index("Your prediction") < text.index("You predicted: 54") < text.index(stop.why)
    assert "One of a, b, c, please." in said and any(each.startswith("Right.") for each in said)
    one.stop(1, stop)
    assert right == {"loop": True} and any(each.startswith("No: b.") for each in said)


def test_the_end_names_the_phase_to_begin_with(evening: ModuleType, tour: Any) -> None:
    path = evening.stops()
    every = {each.key: True for each in path}
    assert evening.begin_with(every, path)[0].endswith("lab-05-pocket-in-100-lines/README.md")
    late = every | {"drafts": False, "full": False}
    assert evening.begin_with(late, path)[0] == "phase-03-continuous-batching-scheduler/00-guide.md"
    assert evening.begin_with({}, path)[0] == "phase-00-foundations/00-guide.md"
    assert "9 of 11 right. Begin with phase-03" in tour.verdict(late, path)
    assert tour.verdict({"loop": True}, path) == "1 of 11 right so far; stop 2 is next: course tour"


def test_the_verb_lists_and_refuses() -> None:
    said = CliRunner().invoke(cli.app, ["tour", "--list"])
    assert said.exit_code == 0 and " 1 " in said.output and "More than one (" in said.output
    refused = CliRunner().invoke(cli.app, ["tour", "--stop", "12"])
    assert isinstance(refused.exception, LabError) and "there are 11 stops" in str(refused.exception)
    assert sys.modules["evening_page"]
