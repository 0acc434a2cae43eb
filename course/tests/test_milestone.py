"""`course milestone`: with the references, with stubs, with something in between, and with a loop that never ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from course import cli
from course.labs import ROOT
from course.plugs import milestone
from course.plugs import parts as plugs
from course.plugs.milestone import SUITE, TESTS, Milestone
from course.plugs.milestone_checks import CHECKS, checks_for
from course.tests.test_plugs import PARTS, all_present, source, wrong  # noqa: F401

pytestmark = pytest.mark.maintainer

FEW = 4


def table(made: Milestone) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    milestone.show(made, console)
    return console.export_text()


def as_stub(part: plugs.Part) -> plugs.Part:
    return replace(part, state="not written", detail="write it.", module=None)


@pytest.mark.slow
def test_with_the_references_everything_holds() -> None:
    all_present()
    made = milestone.run("solution", num_requests=FEW, suite=False)
    assert [(row.part, row.state, row.detail) for row in made.results] == [(part, "holds", "") for part in PARTS]
    assert all(row.held == row.claims for row in made.results) and not made.broken
    assert made.together is not None and (made.together.state, made.together.held) == ("holds", len(CHECKS) + 1)
    text = table(made)
    assert all(row.tokens_per_second and row.reference for row in made.results)
    assert "reference" in text and text.count("holds") == len(PARTS) + 1


def test_with_untouched_starters_nothing_is_started() -> None:
    found = [as_stub(part) for part in plugs.find_parts("all")]
    made = milestone.run(num_requests=2, found=found)
    assert {row.state for row in made.results} == {"not written"} and made.together is None and not made.broken
    text = table(made)
    assert "Nothing of yours is in the engine yet" in text and "Next: course watch 00-03" in text
    assert text.count("ot written") == 1 and len(text.splitlines()) <= 4


@pytest.mark.slow
def test_partly_written_and_partly_wrong(wrong) -> None:  # noqa: F811
    all_present()
    wrong("02-01", "            block.ref_cnt -= 1\n", "")
    wrong("03-01", "    return max(min(num_new_tokens, token_budget), 0)", "    return max(num_new_tokens, 0)")
    found = [as_stub(p) if p.plug.lab == "01-05" else p for p in plugs.find_parts("solution")]
    found = [part for part in found if part.plug.part != "paged attention"]
    made = milestone.run(num_requests=FEW, suite=False, found=found)
    states = {row.part: row.state for row in made.results}
    assert states == {
        "sampling": "holds",
        "model": "holds",
        "stop conditions": "not written",
        "free queue": "holds",
        "block hash": "holds",
        "block pool": "broken",
        "scheduler step": "broken",
        "proposer": "holds",
        "batch sampling": "holds",
        "jump-forward": "holds",
        "vision tower": "holds",
    }
    together = made.together
    assert made.broken and together is not None and together.lab == "00-03 00-05 02-01 08-05 09-05 12-04 13-05"
    text = table(made)
    assert "lab 02-01 (block pool): I1 broken: " in text and "lab 03-01 (scheduler step): S2 broken: " in text
    assert "Not written yet, so ours: 01-05 stop conditions.\nNext: course watch 01-05" in text


def test_a_loop_that_never_ends_is_stopped(wrong, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    source("03-01")
    wrong("03-01", "    plan: dict[str, int] = {}\n", "    plan: dict[str, int] = {}\n    while True:\n        pass\n")
    for limit in (0.3, 3.0, 30.0):  # on a busy machine a short one strikes before it is in the loop
        monkeypatch.setattr(milestone, "TIME_LIMIT", limit)
        (row,) = milestone.run(num_requests=2, suite=False, found=plugs.find_parts("03-01,solution")).results
        if "schedule_step raised TimeoutError" in row.detail:
            break
    assert row.state == "broken" and "schedule_step raised TimeoutError: it ran longer than" in row.detail


@pytest.mark.slow
def test_the_engines_own_suite_on_lab_parts() -> None:
    all_present()
    row = milestone.run_suite("solution", PARTS)
    assert (row.state, row.detail) == ("holds", "") and row.held == row.claims >= 30


def test_the_suite_sees_a_wrong_part(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    source("01-05")
    monkeypatch.setattr(milestone, "SUITE", {"stop conditions": SUITE["stop conditions"]})
    good = milestone.run_suite("01-05,solution", ["stop conditions"])
    assert (good.state, good.held) == ("holds", 3)
    monkeypatch.setattr(milestone, "SUITE", {"none": ("test_engine.py::test_that_does_not_exist",)})
    assert milestone.run_suite("01-05,solution", ["stop conditions"]).state == "broken"


@pytest.mark.parametrize(
    "old, new, detail",
    [
        ("new = new[:-1]", "pass", "Tuesday"),
        ("return bytes(found)", "return bytes(found[:1])", "where the grammar leaves b'name"),
    ],
    ids=["nothing is held back", "one byte of forced text"],
)
def test_a_wrong_jump_is_named(wrong, old: str, new: str, detail: str) -> None:  # noqa: F811
    wrong("12-04", old, new)
    made = milestone.run(num_requests=2, suite=False, found=plugs.find_parts("12-04,solution"))
    (row,) = made.results
    assert row.state == "broken" and detail in row.detail


def test_every_test_of_the_suite_exists_and_every_part_has_claims() -> None:
    for name in (name for group in SUITE.values() for name in group):
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / TESTS / file).read_text(encoding="utf-8"), name
    assert all(len(checks_for(part)) >= 2 for part in PARTS)


def test_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [as_stub(part) for part in plugs.find_parts("all")]
    monkeypatch.setattr(milestone, "find_parts", lambda with_labs: found)
    result = CliRunner().invoke(cli.app, ["milestone", "--no-suite"])
    assert result.exit_code == 0 and "Not written yet" in result.output
