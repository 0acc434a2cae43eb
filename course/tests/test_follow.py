"""`course update` where files cannot be read or written, and where it was ended midway."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.loop import follow, gitwork, learner, outcomes, progress, record
from course.tests import test_relocate
from course.tests.conftest import FIRST, SECOND, SOLUTION
from course.tests.test_relocate import OLD

pytestmark = pytest.mark.maintainer

home = test_relocate.home


def test_what_cannot_be_read_or_is_too_deep_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / FIRST / "starter.py").write_text(f"{OLD}x = {'+'.join(['1'] * 9000)}\n")
    (home / SECOND / "starter.py").write_text(OLD)
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path == home / SECOND / "starter.py":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    made = follow.starters(home)
    assert made[-1].fault == "it cannot be read (Permission denied), so its imports are as they were"
    assert len(made) == 2 and (made[0].fault.startswith("it does not parse") or made[0].changes)


@pytest.mark.parametrize("broken", ["record", "starter"])
def test_an_update_that_ends_midway_is_completed_by_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    starter = home / FIRST / "starter.py"
    starter.write_text(f"{OLD}{SOLUTION}")
    rows = {FIRST.replace("/labs/", "/"): {"starter": outcomes.digest(starter), "state": "done"}}
    record.write_json(home / outcomes.RECORD, rows)
    with monkeypatch.context() as patch:
        if broken == "record":
            patch.setattr(follow, "write_json", lambda *_: False)
            (made,) = follow.starters(home)
            assert "neither can .course/progress.json" in made.fault and starter.read_text().startswith(OLD)
            assert progress.all_progress(home)[0].done
        else:

            def killed(*_: object) -> int:
                raise KeyboardInterrupt

            patch.setattr(Path, "write_bytes", killed)
            patch.setattr(follow, "keep", lambda *_: home)
            with pytest.raises(KeyboardInterrupt):
                follow.starters(home)
    follow.starters(home)
    assert progress.all_progress(home)[0].done and starter.read_text().startswith("from mini_vllm import Pool")


def test_course_update_says_that_the_last_was_ended(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.remember("update", "begun", True, home)
    for words in ("The last `course update` was ended midway; your files", ""):
        with pytest.raises(gitwork.GitError):
            learner.update()
        assert capsys.readouterr().out.startswith(words)
    assert not record.recall("update", home)["begun"]
