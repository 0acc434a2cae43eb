"""What of hers a file that moved may hold besides functions: each is carried, or named; one definition of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.tests import test_carry_moved as former
from course.tests.test_carry_moved import NEXT, edit, run, work
from course.workspace import build

pytestmark = pytest.mark.maintainer

root = former.root
KNOWN = pytest.mark.parametrize("root", ["history"], indirect=True)  # the engine's former text is there
HELPERS = {
    "class Block:": "SEEN = {}\n\n\ndef help_me(x):\n    return x\n\ndef only_mine():\n    return 1\n\n\nclass Block:",
    'raise NotImplementedError("Hash it.")': "SEEN[x] = help_me(x)\n    return 1",
    'raise NotImplementedError("Take n blocks.")': "return [Block() for _ in SEEN]",
}
HERS = {
    "def later():\n    raise NotImplementedError\n": "def later():\n    raise NotImplementedError\n",
    "import xml.dom\nimport xml.sax\n": "import xml.dom\n",
    "from math import *\n": "from math import *\n",
    "if not TYPE_CHECKING:\n    MINE = 1\n": "if not TYPE_CHECKING:\n    MINE = 1\n",
    "one = 1; two = [one]\n": "one = 1; two = [one]\n",
    "TABLE = {}\nTABLE[1] = 1\nTABLE = dict(TABLE)\n": "TABLE = {}\nTABLE[1] = 1\nTABLE = dict(TABLE)\n",
}


@KNOWN
@pytest.mark.parametrize("text", HERS)
def test_what_is_hers_is_carried(text: str, root: Path) -> None:
    edit(work(root) / "pool.py", {"import math\n": f"import math\nfrom typing import TYPE_CHECKING\n\n{text}"})
    carried = build.make_workspace(NEXT, root).carried
    pool = (work(root) / "core" / "pool.py").read_text()
    assert pool.count(HERS[text]) == 1 and not carried.left
    run(root, "import mini_vllm.core.pool")


@KNOWN
def test_parts_of_a_class_are_carried(root: Path) -> None:
    mine = "    import math as m\n\n    def hook(self):\n        raise NotImplementedError\n\n    def give"
    edit(work(root) / "pool.py", {"    def give": mine})
    carried = build.make_workspace(NEXT, root).carried
    assert run(root, "from mini_vllm.core.pool import Pool\nprint(Pool.m.pi > 3, Pool.hook.__name__)") == "True hook"
    assert not carried.left


@KNOWN
def test_what_stays_behind_is_named(root: Path) -> None:
    changes = {
        "import math\n": "import math\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    Kind = int\n",
        'raise NotImplementedError("Hash it.")': '# a plan\n    raise NotImplementedError("Hash it.")',
        "    def take": "    @staticmethod\n    def take",
        "class Pool:": "class Pool:  # mine",
    }
    edit(work(root) / "pool.py", changes)
    (root / "workspace" / "notes.md").write_text("mine")
    left = {each.partition(".py: ")[2] or each for each in build.make_workspace(NEXT, root).carried.left}
    said = "your notes or decorators; it is not written yet, so ours stands there"
    assert left == {
        "Kind = int: below `if TYPE_CHECKING:`",
        f"hash_block: {said}",
        f"Pool.take: {said}",
        "Pool: the line of the class, a decorator or a comment there",
        "notes.md: it is not Python",
    }


@KNOWN
def test_an_import_of_hers_stands_in_for_the_engines(root: Path) -> None:
    (work(root) / "my_math.py").write_text("def prod(x):\n    return 7\n")
    edit(work(root) / "pool.py", {"import math\n": "from mini_vllm import my_math as math\n"})
    assert not build.make_workspace(NEXT, root).carried.left
    assert run(root, "from mini_vllm.core.utils import Block\nprint(Block().size())") == "7"


def test_a_helper_has_one_home_and_imports_follow_it(root: Path) -> None:
    edit(work(root) / "pool.py", HELPERS)
    (work(root) / "notes.py").write_text("from mini_vllm.pool import SEEN, help_me, only_mine, Pool\n")
    (root / "workspace" / "play.py").write_text("import mini_vllm.pool as p\nprint(p.SEEN, p.only_mine())\n")
    build.make_workspace(NEXT, root)
    pool, utils = ((work(root) / "core" / name).read_text() for name in ("pool.py", "utils.py"))
    assert utils.count("SEEN = {}") == 1 and "SEEN = {}" not in pool
    assert "from mini_vllm.core.utils import SEEN\n" in pool and "def only_mine" in pool
    assert (work(root) / "notes.py").read_text() == (
        "from mini_vllm.core.utils import SEEN, help_me\nfrom mini_vllm.core.pool import only_mine, Pool\n"
    )
    code = "from mini_vllm.core.utils import hash_block\nfrom mini_vllm.core.pool import Pool\nimport mini_vllm.notes\n"
    assert run(root, f"{code}hash_block(3)\nprint(len(Pool().take(0)))\nimport play") == "1\n{3: 3} 1"


def test_a_mark_at_the_beginning_is_no_fault(root: Path) -> None:
    pool = work(root) / "pool.py"
    pool.write_text("\ufeff" + pool.read_text().replace('raise NotImplementedError("Hash it.")', "return 3"))
    assert build.make_workspace(NEXT, root).carried.written == ["mini_vllm.core.utils:hash_block"]


def test_what_was_carried_is_carried_again(root: Path) -> None:
    edit(work(root) / "pool.py", {'raise NotImplementedError("Take n blocks.")': "return [Block()] * n  # hers"})
    (work(root) / "notes.py").write_text("x = 1\n")
    build.make_workspace(NEXT, root)
    for phase in (NEXT, build.PhaseBuild(9, "nothing", ())):
        made = build.make_workspace(phase, root)
        assert "# hers" in (work(root) / "core" / "pool.py").read_text() and (work(root) / "notes.py").is_file()
        assert made.carried.written == ["mini_vllm.core.pool:Pool.take"] and made.kept is not None
    made = build.make_workspace(NEXT, root, force=True)
    assert made.kept is not None and "# hers" in (made.kept / "mini_vllm" / "core" / "pool.py").read_text()
    assert "# hers" not in (work(root) / "core" / "pool.py").read_text()
