"""A workspace of the engine's former layout goes on: her functions, helpers, imports, tests; what stays is named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from course.labs import LabError
from course.tests.moved_fixtures import FORMER_POOL, FORMER_TEST, house
from course.workspace import build

pytestmark = pytest.mark.maintainer

TEST = "mini_vllm/tests/core/test_pool.py::test_take"
BUILDS = (
    build.Build("mini_vllm.core.pool:Pool.take", "Take n blocks.", (TEST,)),
    build.Build("mini_vllm.core.utils:Block.size", "Give the size.", (TEST,)),
    build.Build("mini_vllm.core.utils:hash_block", "Hash it.", (TEST,)),
)
FIRST = build.PhaseBuild(7, "pools", BUILDS)
NEXT = build.PhaseBuild(8, "nothing", ())
FORMER = tuple(
    build.Build(f"mini_vllm.pool:{one.name}", one.message, ("mini_vllm/tests/test_pool.py::test_take",))
    for one in BUILDS
)
MINE = {
    "import math\n": "import math\nimport json as js\n\nfrom mini_vllm.outputs import Output, Reason  # for me\n",
    'raise NotImplementedError("Take n blocks.")': """return self._some(n, STEP)

    def _some(self, n, step):  # hers
        from mini_vllm.pool import Block as B
        return [B() for _ in range(0, n, step)]""",
    'raise NotImplementedError("Give the size.")': "return math.floor(_weigh(16.0))  # hers",
    "class Block:": "STEP = 1\n\n\n# weighs\ndef _weigh(x):\n    return js.loads(str(x))\n\n\nclass Block:",
}


def edit(path: Path, changes: dict[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")


def git(root: Path, *args: str) -> None:
    command = ["git", "-C", str(root), "-c", "user.email=a@b", "-c", "user.name=n", *args]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(params=["history", "archive"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course whose engine has moved, with a workspace of phase 7 that was made before; with and without git."""
    package = tmp_path / "mini_vllm"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "gone.py").write_text("def f():\n    return 1\n")
    (package / "engine.py").write_text("class EngineCore: ...\n\n\nclass LLMEngine: ...\n")
    (package / "pool.py").write_text(FORMER_POOL)
    (package / "tests" / "test_pool.py").write_text(FORMER_TEST)
    former = build.PhaseBuild(7, "pools", FORMER)
    monkeypatch.setattr(build, "phase_builds", lambda: {7: former})
    build.make_workspace(former, tmp_path)
    if request.param == "history":
        (tmp_path / ".gitignore").write_text("workspace/\n.course/\n")
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "one")
    for name in ("gone.py", "engine.py", "pool.py", "tests/test_pool.py"):
        (package / name).unlink()
    house(tmp_path)
    if request.param == "history":
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "two")
    monkeypatch.setattr(build, "phase_builds", lambda: {7: FIRST, 8: NEXT})
    return tmp_path


def work(root: Path) -> Path:
    return root / "workspace" / "mini_vllm"


def run(root: Path, code: str) -> str:
    """Runs code on the workspace alone."""
    lines = f"import sys\nsys.path.insert(0, {str(root / 'workspace')!r})\n{code}"
    done = subprocess.run([sys.executable, "-S", "-c", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_cut_file_goes_to_both_places(root: Path) -> None:
    edit(work(root) / "pool.py", MINE)
    made = build.make_workspace(NEXT, root)
    carried = made.carried
    assert carried.written == ["mini_vllm.core.utils:Block.size", "mini_vllm.core.pool:Pool.take"]
    assert carried.filled == ["mini_vllm.core.utils:hash_block"]
    assert not carried.left and not carried.own
    pool, utils = ((work(root) / "core" / name).read_text() for name in ("pool.py", "utils.py"))
    assert "STEP = 1" in pool and "def _some(self, n, step):  # hers" in pool and "_weigh" not in pool
    assert "from mini_vllm.core.utils import Block as B" in pool
    assert "# weighs\ndef _weigh(x):" in utils and "import json as js" in utils and "STEP" not in utils
    assert pool.startswith('"""The pool."""') and "NotImplementedError" not in pool + utils
    code = "from mini_vllm.core.pool import Pool\nprint(len(Pool().take(3)), Pool().take(1)[0].size())"
    assert run(root, code) == "3 16"


def test_imports_that_nothing_uses_yet_come_along(root: Path) -> None:
    edit(work(root) / "pool.py", MINE)
    build.make_workspace(NEXT, root)
    pool = (work(root) / "core" / "pool.py").read_text()
    known = (root / ".git").exists()  # else her imports cannot be told from the engine's
    assert ("from mini_vllm.outputs import Output\n" in pool) == known
    assert ("from mini_vllm.engine import Reason\n" in pool) == known


def test_what_cannot_be_carried_is_named(root: Path) -> None:
    edit(
        work(root) / "pool.py",
        {
            'raise NotImplementedError("Hash it.")': "return 0",
            "return len(blocks)": "return len(blocks) + 1",
            "def _private(x):\n    return x\n\n\n": "",
            'class Pool:\n    """Blocks."""': 'class Pool(list):\n    """Blocks."""',
        },
    )
    (work(root) / "gone.py").write_text("def f():\n    return 2\n")
    edit(root / "mini_vllm" / "core" / "pool.py", {"return len(blocks)": "return len(list(blocks))"})
    made = build.make_workspace(NEXT, root)
    assert made.carried.written == ["mini_vllm.core.utils:hash_block"]
    left = {each.partition(": ")[2].partition(": ")[0]: each for each in made.carried.left}
    assert left.keys() >= {"Pool", "Pool.give", "the engine has no such file any more"}
    if (root / ".git").exists():
        assert left["_private"].endswith("_private: you removed it; the engine's is there again")
        assert left["Pool.give"].endswith("no phase up to yours teaches it, and the engine's has changed")
    assert made.kept is not None
    kept = made.kept.relative_to(root).as_posix()
    lines = made.carried.told(kept)
    assert "Not carried over; your text is in the copy, put it in by hand if you need it:" in lines
    assert f"  {kept}/mini_vllm/gone.py: the engine has no such file any more" in lines
    for each in made.carried.left:
        assert (root / kept / each.split(":")[0]).is_file()
    assert "return len(blocks) + 1" in (made.kept / "mini_vllm" / "pool.py").read_text()


def test_a_change_beside_the_phase_goes_along_where_the_engine_is_the_same(root: Path) -> None:
    edit(work(root) / "pool.py", {"return len(blocks)": "return len(blocks)  # give back", "LIMIT = 4": "LIMIT = 5"})
    carried = build.make_workspace(NEXT, root).carried
    pool = (work(root) / "core" / "pool.py").read_text()
    if (root / ".git").exists():
        assert "# give back" in pool and "LIMIT = 5" in pool and not carried.left
        assert carried.also == ["mini_vllm.core.pool:LIMIT", "mini_vllm.core.pool:Pool.give"]
    else:
        assert "# give back" not in pool and len(carried.left) == 2


def test_own_files_and_tests(root: Path) -> None:
    (work(root) / "mine.py").write_text("from mini_vllm.pool import Pool, Block\nfrom . import request\n")
    (work(root) / "core.py").write_text("x = 1\n")
    (root / "workspace" / "play.py").write_text("import mini_vllm.pool as p\n")
    (root / "workspace" / "conftest.py").write_text("x = 1\n")
    tests = work(root) / "tests" / "test_pool.py"
    tests.write_text(
        tests.read_text() + "\n\ndef test_mine():\n    from mini_vllm.pool import LIMIT\n    assert LIMIT\n"
    )
    carried = build.make_workspace(NEXT, root).carried
    assert carried.own == ["mini_vllm/mine.py", "play.py"]
    assert (work(root) / "mine.py").read_text() == (
        "from mini_vllm.core.pool import Pool\nfrom mini_vllm.core.utils import Block\nfrom . import request\n"
    )
    assert (root / "workspace" / "play.py").read_text() == "import mini_vllm.core.pool as p\n"
    now = (work(root) / "tests" / "core" / "test_pool.py").read_text()
    assert "def test_mine():\n    from mini_vllm.core.pool import LIMIT\n" in now
    assert carried.left == [
        "conftest.py: `course build` makes it anew",
        "mini_vllm/core.py: the engine has a folder of that name now",
    ]


def test_names_that_the_engine_has_now_are_not_overwritten(root: Path) -> None:
    edit(root / "mini_vllm" / "core" / "pool.py", {"LIMIT = 4\n": "LIMIT = 4\n\n\ndef _mine():\n    return 'ours'\n"})
    changes = {"class Pool:": "def _mine():\n    return 'hers'\n\n\nclass Pool:"}
    edit(work(root) / "pool.py", changes)
    carried = build.make_workspace(NEXT, root).carried
    assert "return 'ours'" in (work(root) / "core" / "pool.py").read_text()
    assert len(carried.left) == 1 and carried.left[0].startswith("mini_vllm/pool.py: _mine: ")


def test_the_new_phase_takes_its_bodies_out_and_the_next_build_goes_on(root: Path) -> None:
    edit(work(root) / "pool.py", MINE)
    give = build.Build("mini_vllm.core.pool:Pool.give", "Take them back.", (TEST,))
    build.make_workspace(build.PhaseBuild(8, "giving", (give,)), root)
    pool = work(root) / "core" / "pool.py"
    assert pool.read_text().count("NotImplementedError") == 1 and "# hers" in pool.read_text()
    edit(pool, {'raise NotImplementedError("Take them back.")': "return len(blocks)  # hers too"})
    made = build.make_workspace(build.PhaseBuild(9, "nothing", ()), root)
    assert "# hers too" in pool.read_text() and "def _some" in pool.read_text() and not made.carried.left
    assert "mini_vllm.core.pool:Pool.take" in made.carried.written


def test_a_broken_file_stops_it_before_anything_moves(root: Path) -> None:
    (work(root) / "pool.py").write_text("def f(:\n")
    with pytest.raises(LabError, match=r"workspace/mini_vllm/pool\.py, line 1: .*; mend it before you go on"):
        build.make_workspace(NEXT, root)
    (work(root) / "pool.py").write_bytes(b"x = '\xff'\n")
    with pytest.raises(LabError, match=r"workspace/mini_vllm/pool\.py is not a Python text file"):
        build.make_workspace(NEXT, root)
    assert not list((root / ".course").glob("workspace*"))


def test_a_former_workspace_is_tested_as_it_stands(root: Path) -> None:
    target = root / "workspace"
    assert build.tests_in(target, [TEST, f"{TEST}[a]", "mini_vllm/tests/core/test_pool.py"], root) == (
        [
            "mini_vllm/tests/test_pool.py::test_take",
            "mini_vllm/tests/test_pool.py::test_take[a]",
            "mini_vllm/tests/test_pool.py",
        ],
        [],
    )
    lacking = ["mini_vllm/tests/core/test_pool.py::test_new", "mini_vllm/tests/test_other.py::test_x"]
    assert build.tests_in(target, lacking, root) == ([], lacking)
    done = build.run_tests(target, build.tests_in(target, [TEST], root)[0], capture=True)
    # Python 3.10 knows the name of a function, not of its class
    assert done.returncode == 1 and re.search(r"not written yet: (Pool\.)?take", done.stdout)
    edit(work(root) / "pool.py", {'raise NotImplementedError("Take n blocks.")': "return [Block()] * n"})
    with pytest.raises(LabError, match=r"holds work of yours \(mini_vllm/pool\.py\); test it with `course build"):
        build.make_workspace(FIRST, root)


def test_notes_are_not_thrown_away(root: Path) -> None:
    (root / "workspace" / "notes.md").write_text("mine")
    made = build.make_workspace(FIRST, root)
    assert made.kept is not None and (made.kept / "notes.md").read_text() == "mine"
    assert build.make_workspace(FIRST, root).kept is None


def test_docstrings_stay_and_are_named_where_they_are_hers(root: Path) -> None:
    changes = {
        '"""The pool."""': '"""My pool."""',
        '"""Blocks."""': '"""My blocks."""',
        "LIMIT = 4": "# mine\nLIMIT = 4",
    }
    edit(work(root) / "pool.py", changes)
    left = build.make_workspace(NEXT, root).carried.left
    if (root / ".git").exists():
        names = (
            "the docstring of the file",
            "the docstring of Pool",
            "comments of yours between the functions (line 5)",
        )
        assert left == [f"mini_vllm/pool.py: {name}" for name in names]
    else:
        assert left == []  # whose they are cannot be told
