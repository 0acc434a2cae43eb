"""Each verb of `course` once, as a learner or an instructor types it, on things so small that all take seconds. What
the verbs do in the corners: the other files of this folder, under the mark `maintainer`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course import cli
from course.labs import ROOT, LabError, lab_of
from course.loop import gitwork, hints, screen
from course.loop.sidebyside import compare
from course.tests.conftest import FIRST, SOLUTION, STARTER, Run
from course.workspace import build

README = """# Lab

## What the tests prove

| Test | Claim |
|---|---|
| `test_add`, `test_negative` | steps add up and are refused below zero |

## Hints

<details><summary>Hint 1: the first</summary>

Use `n`.
</details>

## Going further
"""


def say(*args: str, status: int = 0) -> str:
    """What a verb prints; its exit status is compared."""
    result = CliRunner().invoke(cli.app, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def home(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small course as a clone, with a README."""
    (small_course / FIRST / "README.md").write_text(README, encoding="utf-8")
    git = ["git", "-C", str(small_course), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    return small_course


def test_a_process_of_its_own_answers_and_refuses() -> None:
    command = [sys.executable, "-m", "course", "test", "99-99"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("course: no lab or phase is called '99-99'")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "verb",
    ["build", "capacity", "diff", "doctor", "grade", "hint", "interview", "milestone", "next", "progress", "reset",
     "serve", "test", "tour", "update", "upstream", "verify", "vllm", "watch"],
)  # fmt: skip
def test_each_verb_explains_itself(verb: str) -> None:
    assert verb in say("--help") and len(say(verb, "--help").splitlines()) > 5


def test_the_tests_of_a_lab_say_what_is_not_written(run: Run) -> None:
    assert run("-q", FIRST, LAB_IMPL="solution").returncode == 0
    done = run("-q", FIRST, LAB_IMPL="starter")
    assert done.returncode == 1 and "not written yet: " in done.stdout and "Return twice x." in done.stdout


def test_next_says_what_to_write() -> None:
    said = say("next", "00-01")
    assert "labs/lab-01-kv-cache-speedup/starter.py" in said and "course hint 00-01" in said


def test_one_hint_more_each_time(home: Path) -> None:
    lab = lab_of(FIRST)
    assert lab is not None
    shown, total = hints.next_hints(lab, root=home)
    assert [hint.title for _, hint in shown] == ["the first"] and total == 1
    assert hints.next_hints(lab, root=home) == ([], 1)


def test_reset_brings_the_original_and_keeps_yours(home: Path) -> None:
    starter = home / FIRST / "starter.py"
    starter.write_text(SOLUTION, encoding="utf-8")
    kept = gitwork.reset(starter, home)
    assert starter.read_text(encoding="utf-8") == STARTER
    assert kept is not None and kept.read_text(encoding="utf-8") == SOLUTION
    with pytest.raises(LabError, match="no lab or phase is called"):
        say("reset", "99-99")


def test_diff_lays_two_files_side_by_side(home: Path) -> None:
    starter, solution = home / FIRST / "starter.py", home / FIRST / "solution.py"
    starter.write_text(SOLUTION.replace("return 2 * x", "return x + x"), encoding="utf-8")
    lines = list(compare(starter, solution, 120))
    assert lines[0].startswith("as in the reference: ") and any("x + x" in line and "2 * x" in line for line in lines)


def test_watch_takes_a_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(screen, "run", begun.append)
    say("watch", "00-01")
    assert [lab.number for lab in begun] == ["00-01"]


def test_build_takes_bodies_out(home: Path) -> None:
    assert "check_stop" in say("build")
    shutil.copytree(ROOT / "mini_vllm", home / "mini_vllm", ignore=shutil.ignore_patterns("golden", "__pycache__"))
    build.make_workspace(build.phase_build(0), home)
    made = (home / "workspace" / "mini_vllm" / "sample" / "sampler.py").read_text(encoding="utf-8")
    assert "NotImplementedError" in made


@pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
def test_grade_marks_a_submission(tmp_path: Path) -> None:
    lab = ROOT / FIRST
    handed = tmp_path / "class" / "ada" / FIRST
    handed.mkdir(parents=True)
    shutil.copy(lab / "starter.py", handed / "starter.py")
    said = say("grade", str(tmp_path / "class"), "--labs", "00-01", "--format", "csv")
    assert "ada" in said


def test_milestone_with_untouched_starters_starts_nothing() -> None:
    from course.labs import edited_starters

    if edited_starters():
        pytest.skip("a starter holds your work")
    assert "Nothing of yours is in the engine yet" in say("milestone", "--no-suite")


def test_doctor_upstream_and_verify_look() -> None:
    assert "You can begin" in say("doctor")
    with pytest.raises(LabError, match="no lab or phase is called"):
        say("verify", "99-99")
