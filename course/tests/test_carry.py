"""A workspace goes on where the engine has changed since it was made: what is merged, what is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from course.labs import LabError
from course.workspace import build
from course.workspace.carry import BOTH, UNKNOWN

pytestmark = pytest.mark.maintainer

POOL = '''"""The pool."""

import math

LIMIT = 4


class Pool:
    """Blocks."""

    def take(self, n):
        """Takes n blocks."""
        return [0] * n

    def give(self, blocks):
        """Takes them back."""
        return len(blocks)


def hash_block(x):
    """Hashes it."""
    return x % 7


def last(x):
    """The end."""
    return x
'''
TESTS = ("mini_vllm/tests/test_pool.py::test_take",)
FIRST = build.PhaseBuild(
    7,
    "pools",
    (
        build.Build("mini_vllm.pool:Pool.take", "Take n blocks.", TESTS),
        build.Build("mini_vllm.pool:hash_block", "Hash it.", TESTS),
    ),
)
NEXT = build.PhaseBuild(8, "nothing", ())


def edit(path: Path, changes: dict[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")


def commit(root: Path) -> None:
    who = ["-c", "user.email=a@b", "-c", "user.name=n"]
    for args in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "a step"]):
        subprocess.run(["git", "-C", str(root), *args], check=True, capture_output=True)


@pytest.fixture(params=["history", "archive"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with a workspace of phase 7 in which `take` is written; the clone with and without git."""
    package = tmp_path / "mini_vllm"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "gone.py").write_text("def f():\n    return 1\n")
    (package / "pool.py").write_text(POOL)
    (package / "tests" / "test_pool.py").write_text("def test_take():\n    pass\n")
    (tmp_path / ".gitignore").write_text("workspace/\n.course/\n")
    if request.param == "history":
        commit(tmp_path)
    monkeypatch.setattr(build, "phase_builds", lambda: {7: FIRST, 8: NEXT})
    build.make_workspace(FIRST, tmp_path)
    mine = "return self._some(n)  # hers\n\n    def _some(self, n):\n        return [math.floor(1.5)] * n"
    edit(tmp_path / "workspace" / "mini_vllm" / "pool.py", {'raise NotImplementedError("Take n blocks.")': mine})
    return tmp_path


def work(root: Path) -> Path:
    return root / "workspace" / "mini_vllm"


KNOWN = pytest.mark.parametrize("root", ["history"], indirect=True)


def test_a_file_that_changed_is_merged_or_named(root: Path) -> None:
    edit(root / "mini_vllm" / "pool.py", {"LIMIT = 4": "LIMIT = 8", "return x\n": "return x + 1\n"})
    made = build.make_workspace(NEXT, root).carried
    text = (work(root) / "pool.py").read_text()
    assert made.written == ["mini_vllm.pool:Pool.take"] and made.filled == ["mini_vllm.pool:hash_block"]
    assert "LIMIT = 8" in text and "return x + 1" in text and "# hers" in text and "return x % 7" in text
    if (root / ".git").exists():
        assert "def _some(self, n):" in text and made.left == []
    else:
        assert "def _some" not in text and made.left == [f"mini_vllm/pool.py: {UNKNOWN}"]


@KNOWN
def test_a_function_of_hers_stays_hers_where_the_engines_has_changed(root: Path) -> None:
    edit(root / "mini_vllm" / "pool.py", {"return [0] * n": "return [1] * n", "return x % 7": "return x % 11"})
    made = build.make_workspace(NEXT, root).carried
    text = (work(root) / "pool.py").read_text()
    assert "# hers" in text and "[1] * n" not in text and "return x % 11" in text and made.left == []


@KNOWN
def test_lines_that_both_changed_are_the_engines_and_named(root: Path) -> None:
    edit(work(root) / "pool.py", {"return len(blocks)": "return len(blocks) + 1", "LIMIT = 4": "LIMIT = 5"})
    edit(root / "mini_vllm" / "pool.py", {"return len(blocks)": "return len(list(blocks))"})
    made = build.make_workspace(NEXT, root)
    text = (work(root) / "pool.py").read_text()
    assert "len(list(blocks))" in text and "LIMIT = 5" in text and "# hers" in text
    assert made.carried.left == [f"mini_vllm/pool.py: {BOTH}"] and made.kept is not None
    lines = made.carried.told(made.kept.relative_to(root).as_posix())
    assert lines[-1] == f"  .course/workspace-1/mini_vllm/pool.py: {BOTH}"
    assert "len(blocks) + 1" in (made.kept / "mini_vllm" / "pool.py").read_text()


def test_her_own_files_and_what_is_gone(root: Path) -> None:
    (work(root) / "mine.py").write_text("x = 1\n")
    (work(root) / "folder.py").write_text("x = 1\n")
    (root / "workspace" / "play.py").write_text("x = 1\n")
    (root / "workspace" / "conftest.py").write_text("x = 1\n")
    (root / "workspace" / "notes.md").write_text("mine")
    (work(root) / "tests" / "test_pool.py").unlink()
    edit(work(root) / "gone.py", {"return 1": "return 2"})
    (root / "mini_vllm" / "gone.py").unlink()
    (root / "mini_vllm" / "folder").mkdir()
    made = build.make_workspace(NEXT, root).carried
    assert made.own == ["mini_vllm/mine.py", "play.py"] and (work(root) / "mine.py").is_file()
    assert made.left == [
        "conftest.py: `course build` makes it anew",
        "mini_vllm/folder.py: the engine has a folder of that name now",
        "mini_vllm/gone.py: the engine has no such file any more",
        "mini_vllm/tests/test_pool.py: you removed it; the engine's is there again",
        "notes.md: it is not Python",
    ]


def test_notes_at_what_is_not_written_are_named(root: Path) -> None:
    edit(
        work(root) / "pool.py",
        {'raise NotImplementedError("Hash it.")': '# a plan\n    raise NotImplementedError("H")'},
    )
    said = "your notes or decorators; it is not written yet, so ours stands there"
    assert build.make_workspace(NEXT, root).carried.left == [f"mini_vllm/pool.py: hash_block: {said}"]


def test_a_mark_at_the_beginning_is_no_fault_and_no_python_is(root: Path) -> None:
    pool = work(root) / "pool.py"
    text = pool.read_text()
    pool.write_bytes(b"x = '\xff'\n")
    with pytest.raises(LabError, match=r"workspace/mini_vllm/pool\.py is not a Python text file"):
        build.make_workspace(NEXT, root)
    pool.write_text("\ufeff" + text)
    assert build.make_workspace(NEXT, root).carried.written == ["mini_vllm.pool:Pool.take"]


def test_what_a_workspace_does_not_have_is_not_run(root: Path) -> None:
    lacking = ["mini_vllm/tests/test_pool.py::test_new", "mini_vllm/tests/test_other.py::test_x"]
    have = ["mini_vllm/tests/test_pool.py", f"{TESTS[0]}[a]", *TESTS]
    assert build.lacking(root / "workspace", [*have, *lacking]) == lacking
