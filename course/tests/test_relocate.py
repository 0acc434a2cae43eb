"""Imports of former places in a learner's files: rewritten, byte for byte, told, and her record goes along."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from course import labs
from course.loop import follow, gitwork, hints, learner, outcomes, progress, record, relocate
from course.tests.conftest import FIRST, SECOND, SOLUTION, STARTER
from course.tests.moved_fixtures import house
from mini_vllm import moved

pytestmark = pytest.mark.maintainer

OLD = "from mini_vllm.pool import Pool\n"

CASES = {
    "from mini_vllm.pool import Pool, Block  # noqa: F401  (for you)\n": (
        "from mini_vllm import Pool, Block  # noqa: F401  (for you)\n"
    ),
    "from mini_vllm.pool import LIMIT as L\n": "from mini_vllm.core.pool import LIMIT as L\n",
    "from mini_vllm.pool import (\n    Pool,  # one\n    Block,\n)  # two\n": (
        "from mini_vllm import (\n    Pool,  # one\n    Block,\n)  # two\n"
    ),
    "from mini_vllm.pool \\\n    import Pool\n": "from mini_vllm \\\n    import Pool\n",
    "def f():\n\tfrom mini_vllm.pool import LIMIT, hash_block  # x\n\treturn LIMIT\n": (
        "def f():\n\tfrom mini_vllm.core.pool import LIMIT  # x\n\tfrom mini_vllm.core.utils import hash_block  # x\n"
        "\treturn LIMIT\n"
    ),
    "from mini_vllm.pool import (LIMIT,  # a\n  hash_block)\n": (
        "from mini_vllm.core.pool import LIMIT  # a\nfrom mini_vllm.core.utils import hash_block  # a\n"
    ),
    "if 1: from mini_vllm.pool import LIMIT, hash_block; x = 2\n": (
        "if 1: from mini_vllm.core.pool import LIMIT; from mini_vllm.core.utils import hash_block; x = 2\n"
    ),
    "import mini_vllm.pool as p, os\nprint(p.Pool)\n": "import mini_vllm.core.pool as p, os\nprint(p.Pool)\n",
    "import mini_vllm.pool\nä = 'ö'; print('é', mini_vllm.pool.Pool, mini_vllm.pool.LIMIT, mini_vllm.pool)\n": (
        "import mini_vllm.core.pool\n"
        "ä = 'ö'; print('é', mini_vllm.Pool, mini_vllm.core.pool.LIMIT, mini_vllm.core.pool)\n"
    ),
    "from mini_vllm import pool, Request\n": "from mini_vllm.core import pool\nfrom mini_vllm import Request\n",
    "from mini_vllm.models import layers\n": "from mini_vllm.layers import arithmetic as layers\n",
    "from mini_vllm.moe.align import align\n": "from mini_vllm.layers.moe.align import align\n",
    "from mini_vllm.engine import EngineCore, LLMEngine\n": "from mini_vllm import EngineCore, LLMEngine\n",
    "from mini_vllm.outputs import Output, Reason\n": "from mini_vllm import Output, Reason\n",
    "from mini_vllm.pool import *\n": "from mini_vllm.core.pool import *\nfrom mini_vllm.core.utils import *\n",
    "x = 1\r\nfrom mini_vllm.pool import Pool\r\n\x0cy = 2": "x = 1\r\nfrom mini_vllm import Pool\r\n\x0cy = 2",
}
LEFT = [
    "from mini_vllm import Pool\nfrom mini_vllm.request import Request\nfrom mini_vllm.engine import core, Reason\n",
    "from mini_vllm.core.pool import LIMIT\nimport mini_vllm.engine\nimport mini_vllm_two.pool\n",
    "'''from mini_vllm.pool import Pool'''\n# import mini_vllm.pool\nfrom pool import mini_vllm\n",
    "from .pool import Pool\n",
    "from mini_vllm import engine\n\n\ndef f(engine):\n    return engine.step()\n",
    "import mini_vllm.engine as engine\nengine.core.EngineCore, engine.Reason, engine.__name__\n",
    "from mini_vllm import Pool\n\n\ndef f(engine, pool):\n    return engine.EngineCore, pool.hash_block\n",
    "def f(mini_vllm):\n    return mini_vllm.pool.Pool, mini_vllm.pool\n",
    "for engine in (): engine.EngineCore\n",
]


@pytest.mark.parametrize("source", CASES)
def test_imports_follow(source: str, tmp_path: Path) -> None:
    moves = moved.read(house(tmp_path))
    made = relocate.rewrite(source, moves)
    assert made.text == CASES[source] and made.changes
    again = relocate.rewrite(made.text, moves)
    assert again.text == made.text and not again.changes and not again.notes


@pytest.mark.parametrize("source", LEFT)
def test_everything_else_is_left(source: str, tmp_path: Path) -> None:
    made = relocate.rewrite(source, moved.read(house(tmp_path)))
    assert made.text == source and not made.changes and not made.notes


def test_engine_files_name_modules_and_relative_imports_are_resolved(tmp_path: Path) -> None:
    moves = moved.read(house(tmp_path))
    source = (
        "from mini_vllm.pool import Pool\nfrom .pool import Block\nfrom . import request\nfrom.request import Request"
    )
    now = "from mini_vllm.core.pool import Pool\nfrom mini_vllm.core.utils import Block\n"
    stays = relocate.rewrite(source, moves, public=False, package="mini_vllm").text
    assert stays == now + "from . import request\nfrom.request import Request"
    leaves = relocate.rewrite(source, moves, public=False, package="mini_vllm", leaves=True).text
    assert leaves == now + "from mini_vllm import request\nfrom mini_vllm.request import Request"


def test_what_it_cannot_do_is_noted(tmp_path: Path) -> None:
    moves = moved.read(house(tmp_path))
    made = relocate.rewrite("import mini_vllm.pool\nx = mini_vllm.pool.hash_block\n", moves)
    assert made.text == (
        "import mini_vllm.core.pool\nimport mini_vllm.core.utils\nx = mini_vllm.core.utils.hash_block\n"
    )
    made = relocate.rewrite("import mini_vllm.engine as e\ne.LLMEngine = 1\n", moves)
    assert made.notes == ["line 2: e.LLMEngine is LLMEngine of mini_vllm.engine.llm_engine now"] and not made.changes


def test_in_an_f_string_it_is_rewritten_or_noted(tmp_path: Path) -> None:
    """Python 3.12 knows where names stand in an f-string; before, not always: then nothing is touched."""
    moves = moved.read(house(tmp_path))
    for quotes in ('"', '"""'):
        source = (
            f"import mini_vllm.pool\nx = 'ä' f{quotes}a {{mini_vllm.pool.Pool!r}} {{ mini_vllm.pool.Pool }}{quotes}\n"
        )
        made = relocate.rewrite(source, moves)
        assert made.text.count("mini_vllm.Pool") + len(made.notes) == 2
        assert made.text.replace("mini_vllm.Pool", "mini_vllm.pool.Pool").replace(".core.", ".") == source


def test_every_former_place_of_the_engine_is_found() -> None:
    """With the real table, as though none of the former files were there."""
    real = moved.read()
    moves = moved.Moves(Path("nowhere", "mini_vllm"), real.modules, {}, {})
    for old, new in real.modules.items():
        made = relocate.rewrite(f"import {old}\nfrom {old} import x\n", moves)
        assert made.text == f"import {new}\nfrom {new} import x\n"


@pytest.fixture
def home(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small course, its engine moved, as the place where the verbs work."""
    house(small_course)
    for module in (hints, record, gitwork, learner, follow):
        monkeypatch.setattr(module, "ROOT", small_course)
    return small_course


def test_starters_are_rewritten_once_and_stay_done(home: Path) -> None:
    starter = home / FIRST / "starter.py"
    text = f"# -*- coding: latin-1 -*-\r\n# \xe9\r\nfrom mini_vllm.pool import Pool\r\n{SOLUTION}".encode("latin-1")
    starter.write_bytes(text)
    key = FIRST.replace("/labs/", "/")
    rows = {key: {"starter": outcomes.digest(starter), "state": "done", "passed": 4, "total": 4}}
    record.write_json(home / outcomes.RECORD, rows)
    (made,) = follow.starters(home)
    assert starter.read_bytes() == text.replace(b"mini_vllm.pool", b"mini_vllm")
    assert made.copy is not None and made.copy.read_bytes() == text
    assert made.name == f"{FIRST}/starter.py"
    assert made.changes == ["line 3: from mini_vllm.pool import Pool -> from mini_vllm import Pool"]
    assert follow.starters(home) == []
    assert outcomes.recall(home)[key]["starter"] == outcomes.digest(starter)


def test_progress_survives(home: Path) -> None:
    starter = home / FIRST / "starter.py"
    starter.write_text(f"{OLD}{SOLUTION}")
    rows = {FIRST.replace("/labs/", "/"): {"starter": outcomes.digest(starter), "state": "done"}}
    record.write_json(home / outcomes.RECORD, rows)
    assert progress.all_progress(home)[0].done
    follow.starters(home)
    assert progress.all_progress(home)[0].done and "from mini_vllm import Pool" in starter.read_text()
    starter.write_text(starter.read_text() + "\nx = 1\n")
    assert not progress.all_progress(home)[0].done


def test_a_run_that_cannot_load_leaves_done_as_it_was(home: Path) -> None:
    lab = labs.lab_of(FIRST)
    assert lab is not None
    broken = outcomes.LabOutcome(lab, {"a": outcomes.TestOutcome("a", "error", True)})
    rows = {lab.key: {"starter": outcomes.digest(home / FIRST / "starter.py"), "state": "done"}}
    record.write_json(home / outcomes.RECORD, rows)
    outcomes.remember(home, [broken])
    assert outcomes.recall(home)[lab.key]["state"] == "done"
    (home / FIRST / "starter.py").write_text("x = 1\n")
    outcomes.remember(home, [broken])
    assert outcomes.recall(home)[lab.key]["state"] == "does not load"


def test_a_submission_from_before_the_move_is_graded_as_one_from_today(home: Path) -> None:
    old = "# \xe9\r\nfrom mini_vllm.pool import Pool\r\n".encode()
    assert follow.followed(old, home) == old.replace(b".pool", b"")
    for other in (
        b"from mini_vllm.pool import Pool\ndef f(:\n",
        b"x = 1",
        b"\xff mini_vllm",
        b"(" * 9000 + b"mini_vllm",
    ):
        assert follow.followed(other, home) == other


def test_a_file_that_does_not_parse_is_named_and_left(home: Path) -> None:
    broken = home / FIRST / "starter.py"
    broken.write_text("from mini_vllm.pool import Pool\ndef f(:\n")
    (home / SECOND / "starter.py").write_text("from mini_vllm import Pool\ndef f(:\n")
    (made,) = follow.starters(home)
    assert made.fault == "it does not parse, line 2, so its imports of mini_vllm.pool are as they were"
    assert broken.read_text() == "from mini_vllm.pool import Pool\ndef f(:\n" and made.copy is None


def test_course_update_when_she_pulled_herself(
    home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to date, refused or without a remote: the imports follow all the same."""
    starter = home / FIRST / "starter.py"
    starter.write_text(f"{OLD}{STARTER}")
    with pytest.raises(gitwork.GitError, match="no git history"):
        learner.update()
    said = capsys.readouterr().out
    assert f"imports follow the engine's files: {FIRST}/starter.py (copy: .course/kept/" in said
    assert "line 1: from mini_vllm.pool import Pool -> from mini_vllm import Pool" in said
    with pytest.raises(gitwork.GitError):
        learner.update()
    assert capsys.readouterr().out == ""


def test_course_update_through_a_move(
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clone in which nothing has moved, an edited starter, and a course in which the engine's files have moved."""

    def git(*args: str, at: Path = home) -> None:
        who = ["-c", "user.email=a@b", "-c", "user.name=n"]
        subprocess.run(["git", "-C", str(at), *who, *args], check=True, capture_output=True)

    package = home / "mini_vllm"
    new = {path: path.read_bytes() for path in package.rglob("*") if path.is_file()}
    for path in new:
        path.unlink()
    (package / "pool.py").write_text("class Pool: ...\n")
    (home / FIRST / "starter.py").write_text(f"{OLD}{STARTER}")
    (home / ".gitignore").write_text(".course/\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    clone = tmp_path_factory.mktemp("clone") / "course"
    git("clone", "-q", str(home), str(clone))
    mine = clone / FIRST / "starter.py"
    mine.write_text(f"{OLD}{SOLUTION}")
    rows = {FIRST.replace("/labs/", "/"): {"starter": outcomes.digest(mine), "state": "done"}}
    record.write_json(clone / outcomes.RECORD, rows)
    for path, data in new.items():
        path.write_bytes(data)
    (package / "pool.py").unlink()
    (home / FIRST / "starter.py").write_text(f"from mini_vllm import Pool\n{STARTER}")
    git("add", "-A")
    git("commit", "-qm", "two")
    for module in (record, gitwork, learner, follow):
        monkeypatch.setattr(module, "ROOT", clone)
    learner.update()
    said = capsys.readouterr().out
    assert f"yours stays, the course changed it too: {FIRST}/starter.py" in said
    assert "line 1: from mini_vllm.pool import Pool -> from mini_vllm import Pool" in said
    assert mine.read_text() == f"from mini_vllm import Pool\n{SOLUTION}"
    assert progress.all_progress(clone)[0].done
    learner.update()
    assert capsys.readouterr().out == "The course is up to date.\n"


def test_loading_a_starter_names_the_new_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = home / FIRST / "starter.py"
    starter.write_text(f"\n{OLD}x = 1\n")
    moves = moved.read(home / "mini_vllm")
    monkeypatch.setattr(moved, "read", lambda: moves)
    with pytest.raises(
        labs.LabError,
        match=r"starter\.py:2: mini_vllm\.pool is now mini_vllm\.core\.pool; write `from mini_vllm import Pool`, "
        r"or let `course update` rewrite your file$",
    ):
        labs.load(starter)
    starter.write_text("from mini_vllm.nothing import x\n")
    with pytest.raises(labs.LabError, match=r"starter\.py:1 cannot import: No module named 'mini_vllm\.nothing'"):
        labs.load(starter)
