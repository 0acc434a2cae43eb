"""The verbs of `course`, on the repository where they only read and on a small course where they write. That each
explains itself, and that an error is one line: `test_smoke.py`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.color import ColorSystem
from rich.console import Console
from typer.testing import CliRunner

from course import cli, verify
from course.labs import ROOT, LabError, edited_starters, find_labs, lab_folders
from course.loop import doctor, learner, progress
from course.loop.outcomes import RECORD, digest
from course.pages import shape
from course.tests.conftest import FIRST, SECOND, SOLUTION, STARTER
from course.workspace import build

pytestmark = pytest.mark.maintainer

runner = CliRunner()


def invoke(*args: str) -> str:
    result = runner.invoke(cli.app, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_where_you_are(monkeypatch: pytest.MonkeyPatch) -> None:
    if not lab_folders():
        pytest.skip("no labs here")
    monkeypatch.setattr(cli, "out", Console(width=200))
    with cli.out.capture() as captured:
        cli.show_progress(cli.out)
    assert captured.get().count("\n") <= 3 or "00 foundations" in captured.get()
    assert "course watch" in captured.get()
    one = progress.LabProgress(find_labs("00-02")[0], "7 of 17", 2, 4)
    monkeypatch.setattr(progress, "all_progress", lambda: [one])
    with cli.out.capture() as captured:
        cli.show_progress(cli.out)
    assert "Begun: 00-02 kv-memory-calculator (7 of 17)" in captured.get()


def test_test_runs_your_file(monkeypatch: pytest.MonkeyPatch) -> None:
    if not lab_folders():
        pytest.skip("no labs here")
    calls = []

    def fake(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        calls.append((command, kwargs["env"]["LAB_IMPL"]))  # type: ignore[index]
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(learner.subprocess, "run", fake)
    invoke("test", "00")
    invoke("test", "00-01", "--solution", "--full")
    (phase, impl), (lab, reference) = calls
    assert phase[-1].replace("\\", "/") == "phase-00-foundations/labs" and impl == "starter"
    assert lab[-1].replace("\\", "/") == FIRST and reference == "solution" and "--tb=short" in lab
    with pytest.raises(LabError, match="no lab or phase"):
        invoke("test", "nothing-like-it")


def test_build_lists_makes_and_tests(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "check_stop" in invoke("build")
    with pytest.raises(LabError, match="no mini-build"):
        invoke("build", "20")
    with pytest.raises(LabError, match="is not a phase"):
        invoke("build", "sampler")
    shutil.copytree(ROOT / "mini_vllm", small_course / "mini_vllm", ignore=shutil.ignore_patterns("golden"))
    monkeypatch.setattr(cli, "ROOT", small_course)
    with pytest.raises(LabError, match="there is no workspace/ yet"):
        invoke("build", "00", "--test")
    build.make_workspace(build.phase_build(1), small_course)
    with pytest.raises(LabError, match="workspace/ is of phase 01"):
        invoke("build", "00", "--test")


def test_progress_follows_files_and_record(small_course: Path) -> None:
    first, second = small_course / FIRST / "starter.py", small_course / SECOND / "starter.py"
    assert [p.state for p in progress.all_progress(small_course)] == ["not started", "not started"]
    first.write_text(STARTER.replace('raise NotImplementedError("Return twice x.")', "return x + x"))
    (one, other) = progress.all_progress(small_course)
    assert (one.state, one.written, one.to_write) == ("begun", 1, 2) and other.state == "not started"
    second.write_text(SOLUTION)
    record = {"phase-00-foundations/lab-02-kv-memory-calculator": {"starter": digest(second), "state": "done"}}
    (small_course / ".course").mkdir()
    (small_course / RECORD).write_text(json.dumps(record))
    labs = progress.all_progress(small_course)
    assert labs[1].done and progress.next_lab(labs) == labs[0].lab
    second.write_text(SOLUTION + "\n# one more thought\n")
    assert progress.all_progress(small_course)[1].stale and not progress.all_progress(small_course)[1].done
    (small_course / RECORD).write_text("{broken")
    first.write_text("def f(:")
    assert [p.state for p in progress.all_progress(small_course)] == ["does not load", "begun"]


def test_doctor_names_a_remedy_for_all_that_can_be_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.fetch, "inspect", lambda tree: "is absent")  # looks at thousands of files
    found = list(doctor.findings())
    assert {"Python", "base packages", "pinned vLLM source", "real vLLM on the CPU"} <= {f.what for f in found}
    assert all(f.mend for f in found if not f.good and f.what != "NVIDIA GPU")


def test_doctor_says_whether_you_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [doctor.Finding("Python", "3.11", True, True), doctor.Finding("extra ray", "lacks ray", False, mend="x")]
    monkeypatch.setattr(doctor, "findings", lambda: rows)
    assert "You can begin: course watch." in invoke("doctor")
    rows.append(doctor.Finding("base packages", "lacks numpy", False, True, "pip install -e ."))
    result = runner.invoke(cli.app, ["doctor"])
    assert result.exit_code == 1 and "Mend first: base packages." in result.output
    assert "You can begin" not in result.output


def test_before_the_first_lab_course_says_three_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [progress.LabProgress(lab, "not started", 0, 1) for lab in find_labs("00")]
    monkeypatch.setattr(progress, "all_progress", lambda: rows)
    lines = invoke().splitlines()
    assert len(lines) == 3 and lines[1] == "Read:  phase-00-foundations/00-guide.md" and "course watch" in lines[2]
    assert max(map(len, lines)) < 80


def test_an_unknown_lab_suggests_near_ones() -> None:
    for said, near in (("samplng", "00-03 sampling-basics"), ("00-77", "00-0"), ("alocator", "02-01 block")):
        with pytest.raises(LabError, match=f"no lab or phase is called '{said}'; did you mean .*{near}"):
            find_labs(said)
    with pytest.raises(LabError, match="`course next` names one") as error:
        find_labs("zzzz")
    assert len(str(error.value)) < 120


def test_paths_are_not_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (cli.out, cli.err, learner.out):
        monkeypatch.setattr(console, "_force_terminal", True)
        monkeypatch.setattr(console, "_color_system", ColorSystem.TRUECOLOR)
        with console.capture() as captured:
            console.print("phase-00-foundations/labs/lab-01-kv-cache-speedup/starter.py:12")
        assert "\x1b" not in captured.get()


def test_verify_reports_and_counts(small_course: Path) -> None:
    (small_course / "GLOSSARY.md").write_text(
        "# Glossary\n\n### Token\nA piece of text.\n\nSee [nothing](nowhere.md).\n"
    )
    captured = small_course / FIRST / "captured"
    captured.mkdir()
    (captured / "provenance.json").write_text('{"run": {"machine": "x", "versions": {}, "commands": {}}}')
    console = Console(width=200, record=True, file=open(small_course / "log.txt", "w"))  # noqa: SIM115
    wrong = verify.run([], False, console, small_course)
    text = console.export_text()
    assert wrong > 5 and "nowhere.md" in text and "upstream/ is absent" in text
    assert "provenance.json:1: does not say: date" in text
    assert "red for the right reason" in text and f"{FIRST}/README.md" in text


def test_changed_labs_come_from_git(small_course: Path) -> None:
    git = ["git", "-C", str(small_course), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    assert verify.changed_labs(small_course, "HEAD") == []
    (small_course / FIRST / "solution.py").write_text(SOLUTION + "\n")
    assert verify.changed_labs(small_course, "HEAD") == [small_course / FIRST]
    (small_course / SECOND / "notes.md").write_text("new")
    assert len(verify.changed_labs(small_course, "HEAD")) == 2
    assert len(verify.changed_labs(small_course, "no-such-commit")) == 2


def test_what_is_yours_is_left_alone(small_course: Path) -> None:
    git = ["git", "-C", str(small_course), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    edited_starters.cache_clear()
    mine = small_course / FIRST / "starter.py"
    note = "TO" + "DO"
    mine.write_text(SOLUTION + f"# {note}: think\n")
    (small_course / "notebook").mkdir()
    (small_course / "notebook" / "day-1.md").write_text(f"{note} [x](nowhere.md)\n")
    assert edited_starters(small_course) == {mine}
    subprocess.run([*git, "commit", "-qam", "my work"], check=True, capture_output=True)
    edited_starters.cache_clear()
    assert edited_starters(small_course) == {mine}
    found = shape.text_files(small_course)
    assert mine not in found and small_course / SECOND / "starter.py" in found
    assert not any("notebook" in path.parts for path in found)


def test_targets_are_whole_phases_where_possible() -> None:
    if not lab_folders():
        pytest.skip("no labs here")
    assert cli.targets(find_labs("00")) == [str(Path("phase-00-foundations/labs"))]
