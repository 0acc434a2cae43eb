"""The learner's loop: hints, side by side, reset, update, watch, serve, and what failures say."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from course.failures import teach
from course.labs import ROOT, LabError, lab_folders, lab_of
from course.loop import gitwork, hints, learner, record, sidebyside, watch
from course.tests.conftest import FIRST, SECOND, SOLUTION, STARTER, TESTS

pytestmark = pytest.mark.maintainer

README = """# Lab

## What the tests prove

| Test | Claim |
|---|---|
| `test_add`, `test_negative` | steps add up \\| and are refused below zero |

## Hints

<details><summary>Hint 1: the <b>first</b></summary>

Use `n`.
</details>

<details><summary>Hint 2: the second</summary>

`self.n += by`
</details>

## Going further
"""


@pytest.fixture
def lab_home(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small course with a README, as the place where the verbs work."""
    (small_course / FIRST / "README.md").write_text(README, encoding="utf-8")
    for module in (hints, record, gitwork, learner):
        monkeypatch.setattr(module, "ROOT", small_course)
    return small_course


def test_hints_come_one_by_one(lab_home: Path) -> None:
    lab = lab_of(FIRST)
    assert lab is not None
    assert hints.next_hints(lab, again=True, root=lab_home) == ([], 2)
    assert hints.next_hints(lab, root=lab_home) == ([(1, hints.Hint("the first", "Use `n`."))], 2)
    assert hints.next_hints(lab, root=lab_home)[0][0][0] == 2
    assert hints.next_hints(lab, root=lab_home) == ([], 2)
    assert [n for n, _ in hints.next_hints(lab, again=True, root=lab_home)[0]] == [1, 2]
    (lab_home / record.RECORD).write_text('{"hints": 7', encoding="utf-8")
    assert hints.next_hints(lab, root=lab_home)[0][0][0] == 1
    with pytest.raises(LabError, match="has no hints"):
        hints.read_hints(lab_home / SECOND / "README.md")


def test_every_lab_has_hints_and_claims() -> None:
    for folder in lab_folders():
        assert len(hints.read_hints(folder / "README.md")) >= 3
        tests = re.findall(r"^def (test_\w+)", (folder / "test_lab.py").read_text(encoding="utf-8"), re.M)
        assert set(teach.claims(folder / "README.md")) == set(tests), folder


def test_every_readme_names_the_watcher() -> None:
    for folder in lab_folders():
        run = (folder / "README.md").read_text(encoding="utf-8").partition("\n## Run\n")[2].partition("\n## ")[0]
        lab = lab_of(folder)
        assert lab is not None and f"\ncourse watch {lab.number} " in run, f"{folder}: Run does not name the command"


def test_side_by_side(lab_home: Path) -> None:
    starter, solution = lab_home / FIRST / "starter.py", lab_home / FIRST / "solution.py"
    starter.write_text(SOLUTION.replace("return 2 * x", "y = x + x\n    return y") + "\n\ndef mine():\n    pass\n")
    wide = list(sidebyside.compare(starter, solution, 120))
    assert wide[0] == "as in the reference: Counter.add, shout"
    assert any(line.split(" | ") and "y = x + x" in line and "return 2 * x" in line for line in wide)
    assert any(line.startswith("--- mine, yours") for line in wide) and not any("Twice x" in line for line in wide)
    narrow = list(sidebyside.compare(starter, solution, 80))
    assert "-     return y" in narrow and "+     return 2 * x" in narrow
    starter.write_text("def f(:\n")
    assert "starter.py:1 does not parse" in next(iter(sidebyside.compare(starter, solution, 120)))


def commit(root: Path, text: str) -> None:
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["add", "-A"], ["commit", "-qm", text]):
        subprocess.run([*git, *command], check=True, capture_output=True)


@pytest.fixture
def clone(lab_home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of the small course, which goes on to change in ``lab_home``."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@b.c")
    subprocess.run(["git", "init", "-q", str(lab_home)], check=True)
    (lab_home / ".gitignore").write_text(".course/\n")
    commit(lab_home, "one")
    there = tmp_path_factory.mktemp("clone") / "course"
    subprocess.run(["git", "clone", "-q", str(lab_home), str(there)], check=True)
    return there


def test_reset_brings_the_original_and_keeps_yours(clone: Path) -> None:
    starter = clone / FIRST / "starter.py"
    assert gitwork.reset(starter, clone) is None
    starter.write_text(SOLUTION)
    commit(clone, "my work")
    copy = gitwork.reset(starter, clone)
    assert starter.read_text() == STARTER and copy is not None and copy.read_text() == SOLUTION
    assert copy.is_relative_to(clone / ".course" / "kept")
    starter.write_text("mine again")
    assert gitwork.reset(starter, clone) != copy
    with pytest.raises(LabError, match="no git history"):
        gitwork.reset(clone / SECOND / "starter.py", clone / SECOND)


NEWER = STARTER.replace("Return twice x.", "Return two times x.")


def newer_course(home: Path) -> None:
    for folder in (FIRST, SECOND):
        (home / folder / "starter.py").write_text(NEWER)
    (home / FIRST / "test_lab.py").write_text(TESTS + "\n\ndef test_more(impl):\n    assert impl.double(2) == 4\n")
    commit(home, "two")


@pytest.mark.parametrize("committed", [False, True])
def test_update_leaves_the_work(clone: Path, lab_home: Path, committed: bool) -> None:
    mine = clone / FIRST / "starter.py"
    mine.write_text(SOLUTION)
    if committed:
        commit(clone, "my work")
        mine.write_text(SOLUTION + "# and a thought\n")
    before = mine.read_bytes()
    newer_course(lab_home)
    done = gitwork.update(clone)
    assert mine.read_bytes() == before and (clone / SECOND / "starter.py").read_text() == NEWER
    assert "test_more" in (clone / FIRST / "test_lab.py").read_text()
    assert done.stayed == [f"{FIRST}/starter.py"] and done.tests == [FIRST] and not done.moved
    again = gitwork.update(clone)
    assert again.before == again.after
    assert list((clone / record.KEPT).rglob("starter-*.py"))


def test_update_refuses_before_it_touches_anything(clone: Path, lab_home: Path) -> None:
    (clone / FIRST / "starter.py").write_text(SOLUTION)
    (clone / FIRST / "test_lab.py").write_text("mine\n")
    newer_course(lab_home)
    with pytest.raises(LabError, match=r"files that you changed too: .*test_lab\.py"):
        gitwork.update(clone)
    commit(clone, "all mine")
    with pytest.raises(LabError, match=r"both change .*test_lab\.py"):
        gitwork.update(clone)
    assert (clone / FIRST / "starter.py").read_text() == SOLUTION
    assert (clone / FIRST / "test_lab.py").read_text() == "mine\n"
    assert gitwork.git(clone, "status", "--porcelain") == ""
    with pytest.raises(LabError, match="is not REMOTE/BRANCH"):
        gitwork.update(clone, "nowhere/main")


def test_update_says_what_stands_in_the_way(clone: Path, lab_home: Path) -> None:
    newer_course(lab_home)
    new = "phase-00-foundations/labs/lab-09-new/README.md"
    for root, text in ((lab_home, "theirs"), (clone, "mine")):
        (root / new).parent.mkdir()
        (root / new).write_text(text)
    commit(lab_home, "three")
    with pytest.raises(LabError, match=r"stand here already, unknown to git: .*lab-09-new/README\.md"):
        gitwork.update(clone)
    assert (clone / new).read_text() == "mine"
    branch = gitwork.git(clone, "rev-parse", "--abbrev-ref", "HEAD").strip()
    gitwork.git(clone, "checkout", "--quiet", "--detach")
    with pytest.raises(LabError, match=r"detached HEAD.*git switch.*--source origin/main"):
        gitwork.update(clone)
    gitwork.git(clone, "checkout", "--quiet", branch)
    gitwork.git(clone, "remote", "set-url", "origin", str(clone / "nowhere"))
    with pytest.raises(LabError, match=r"origin \(.*nowhere\) gives no .*; nothing was changed"):
        gitwork.update(clone)
    gitwork.git(clone, "remote", "remove", "origin")
    with pytest.raises(LabError, match="knows no remote"):
        gitwork.update(clone)


def test_update_into_a_shallow_clone(clone: Path, lab_home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("Ärger und Spaß") / "course"
    subprocess.run(["git", "clone", "-q", "--depth", "1", lab_home.as_uri(), str(there)], check=True)
    (there / FIRST / "starter.py").write_text(SOLUTION)
    newer_course(lab_home)
    done = gitwork.update(there)
    assert done.stayed == [f"{FIRST}/starter.py"] and (there / FIRST / "starter.py").read_text() == SOLUTION


def test_update_keeps_the_work_of_a_lab_that_is_gone(clone: Path, lab_home: Path) -> None:
    (clone / FIRST / "starter.py").write_text(SOLUTION)
    for name in ("starter.py", "solution.py", "test_lab.py", "README.md"):
        (lab_home / FIRST / name).unlink()
    commit(lab_home, "gone")
    done = gitwork.update(clone)
    assert not done.stayed and not done.tests and "the lab is gone; your file is in .course/kept" in done.moved[0]
    assert any(path.read_text() == SOLUTION for path in (clone / record.KEPT).rglob("starter-*.py"))


def test_the_record_may_be_read_only_or_broken(lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_of(FIRST)
    assert lab is not None
    (lab_home / ".course").write_text("a file where the folder should be")
    assert [hints.next_hints(lab, root=lab_home)[0][0][0] for _ in range(2)] == [1, 1]
    (lab_home / ".course").unlink()
    for text in ("", "[]", '{"hints": 3}', '{"hints": {"x"'):
        record.write_json(lab_home / record.RECORD, {})
        (lab_home / record.RECORD).write_text(text)
        assert hints.next_hints(lab, root=lab_home)[0][0][0] == 1
    assert [path.name for path in (lab_home / ".course").iterdir()] == ["loop.json"]


def test_update_follows_a_lab_that_moved(clone: Path, lab_home: Path) -> None:
    (clone / FIRST / "starter.py").write_text(SOLUTION)
    (lab_home / FIRST).rename(lab_home / "phase-00-foundations/labs/lab-09-moved")
    commit(lab_home, "moved")
    done = gitwork.update(clone)
    assert (clone / "phase-00-foundations/labs/lab-09-moved/starter.py").read_text() == SOLUTION
    assert not (clone / FIRST).exists() and len(done.moved) == 1


def test_claims_of_the_readme(lab_home: Path) -> None:
    test_file = lab_home / FIRST / "test_lab.py"
    claim = teach.claim_of(test_file, "test_add[1]")
    assert claim == f"steps add up | and are refused below zero\n{FIRST}/README.md:7"
    assert (
        teach.claim_of(test_file, "test_other") == "" == teach.claim_of(lab_home / SECOND / "test_lab.py", "test_add")
    )


def test_watch_runs_again_after_a_save(lab_home: Path, patient: None, capfd: pytest.CaptureFixture[str]) -> None:
    folder, notes = lab_home / FIRST, []

    def note(text: str) -> None:
        notes.append(text)
        if text.startswith("waiting"):  # the worker is given time to get ready, as a learner who types gives it
            threading.Timer(1.0, (folder / "starter.py").write_text, [SOLUTION]).start()

    assert watch.watch(watch.Saves(folder), note, runs=3)
    ends = [text for text in notes if "s after the" in text]
    assert ends[0].startswith("red") and ends[-1].startswith("all pass, ") and len(ends) == 2
    assert "not written yet" in capfd.readouterr().out
    rows = json.loads((lab_home / ".course" / "progress.json").read_text())
    assert rows["phase-00-foundations/lab-01-kv-cache-speedup"]["state"] == "done"


def test_a_save_without_a_change_is_no_reason_to_run(lab_home: Path) -> None:
    folder = lab_home / FIRST
    saves = watch.Saves(folder)
    (folder / "starter.py").write_text(STARTER)
    assert not saves()
    (folder / "starter.py").unlink()
    assert not saves()
    (folder / "starter.py").write_text(SOLUTION)
    assert saves() and not saves()
    with pytest.raises(LabError, match=r"lacks starter\.py"):
        (folder / "starter.py").unlink()
        watch.check(folder)


@pytest.mark.slow
def test_red_tests_come_first_and_slow_ones_later(lab_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, lab = lab_home / FIRST, lab_of(FIRST)
    assert lab is not None
    slow = "import time\nimport pytest\n\n\n@pytest.mark.parametrize('n', range(9))\ndef test_slow(impl, n):\n"
    work = "    end = time.process_time() + 0.1\n    while time.process_time() < end:\n        pass\n"
    (folder / "test_lab.py").write_text(slow + work + "\n\ndef test_red(impl):\n    assert impl.double(1) == 3\n")
    (folder / "starter.py").write_text(SOLUTION)
    for early in (False, True):
        assert not watch.watch(watch.Saves(folder), lambda text: None, runs=1)
        text = capfd.readouterr().out
        assert "got       2" in text and ("not run yet: " in text) == early
    assert record.recall("red", lab_home)[lab.key] == ["test_red"]
    rows = json.loads((lab_home / ".course" / "progress.json").read_text())
    assert rows[lab.key]["total"] == 10  # a run that ended early says nothing about the lab


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emptied file is taken for one that is being written, however long that takes."""
    monkeypatch.setattr(watch, "PATIENCE", 300.0)


def test_an_emptied_file_is_not_run(lab_home: Path, patient: None) -> None:
    folder = lab_home / FIRST
    saves = watch.Saves(folder)
    (folder / "starter.py").write_text("")
    threading.Timer(0.05, (folder / "starter.py").write_text, [SOLUTION]).start()
    assert saves() and saves.known == watch.state(folder)


def test_a_worker_ends_with_its_watcher(lab_home: Path) -> None:
    worker = watch.Worker(lab_home / FIRST)
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(timeout=300) == 0


def test_serve_names_what_is_missing() -> None:
    with socket.socket() as taken:
        taken.bind((learner.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LabError, match=r'port \d+ is taken|pip install -e "\.\[docs\]"'):
            learner.serve(port)


def test_serve_lists_no_pages(tmp_path: Path) -> None:
    """Under the website's own settings mkdocs does not name the pages that are no entry of the menu."""
    pytest.importorskip("mkdocs", reason='pip install -e ".[docs]"')
    ours = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head = "site_name: small\ntheme: {name: null, custom_dir: look}\nnav: [index.md]\nplugins: []\n"
    (tmp_path / "look").mkdir()
    (tmp_path / "docs").mkdir()
    for name in ("index", "omitted"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# {name}\n")
    said = {}
    for settings in ("", "validation:" + ours.partition("\nvalidation:")[2]):
        (tmp_path / "mkdocs.yml").write_text(head + settings)
        command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        said[bool(settings)] = done.stderr + done.stdout
    assert "omitted.md" in said[False] and "omitted.md" not in said[True]


@pytest.mark.parametrize("line", ["next", "next 00-01", "hint nothing-like-it", "reset 00", "--help"])
def test_verbs_in_a_dumb_terminal(line: str) -> None:
    if not lab_folders():
        pytest.skip("no labs here")
    args = line.split()
    env = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "course", *args], cwd=ROOT, env=env, capture_output=True, check=False)
    text = (done.stdout + done.stderr).decode("ascii")
    assert "\x1b" not in text and "Traceback" not in text and text.strip()
    assert done.returncode == (2 if args[0] in ("hint", "reset") else 0)


def test_course_update_says_that_the_last_was_ended(lab_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.remember("update", "begun", True, lab_home)
    for words in ("The last `course update` was ended midway; your files", ""):
        with pytest.raises(gitwork.GitError):
            learner.update("no/such")
        assert capsys.readouterr().out.startswith(words)
    assert not record.recall("update", lab_home)["begun"]
