"""Names that stand for a module of mini_vllm: what is taken from them follows, where it is sure what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.loop import relocate
from course.tests.moved_fixtures import house
from mini_vllm import moved

pytestmark = pytest.mark.maintainer

ALIASES = {
    "import mini_vllm.pool as p  # it\np.hash_block(1), p.LIMIT, p.Block\n": (
        "import mini_vllm.core.pool as p  # it\nfrom mini_vllm.core.utils import hash_block\n"
        "hash_block(1), p.LIMIT, p.Block\n"
    ),
    "def f(hash_block):\n    from mini_vllm import pool\n    return pool.hash_block(hash_block), pool.hash_block\n": (
        "def f(hash_block):\n    from mini_vllm.core import pool\n"
        "    from mini_vllm.core.utils import hash_block as pool_hash_block\n"
        "    return pool_hash_block(hash_block), pool_hash_block\n"
    ),
    "import mini_vllm.engine as e; x = e.LLMEngine, e.Reason\n": (
        "import mini_vllm.engine as e; from mini_vllm import LLMEngine; x = LLMEngine, e.Reason\n"
    ),
    "import mini_vllm.moe as m\nm.align.align(m.align)\n": (
        "import mini_vllm.layers.moe as m\nfrom mini_vllm.layers.moe.align import align\n"
        "from mini_vllm.layers.moe import align as m_align\nalign(m_align)\n"
    ),
    "import mini_vllm.models as m\nm.layers.add, m.layers\n": (
        "import mini_vllm.models as m\nfrom mini_vllm.layers.arithmetic import add\n"
        "from mini_vllm.layers import arithmetic as layers\nadd, layers\n"
    ),
    "import mini_vllm as mv\nmv.pool.Pool, mv.Pool\n": "import mini_vllm as mv\nmv.Pool, mv.Pool\n",
    "from mini_vllm import pool\ndef f():\n    def g(): return pool.hash_block\n"
    "    return [pool.LIMIT for _ in g()]\n": (
        "from mini_vllm.core import pool\nfrom mini_vllm.core.utils import hash_block\n"
        "def f():\n    def g(): return hash_block\n    return [pool.LIMIT for _ in g()]\n"
    ),
    "import mini_vllm . pool as p, mini_vllm.\\\npool\n": "import mini_vllm.core.pool as p, mini_vllm.core.pool\n",
}
ENGINE = "from mini_vllm import engine\n"
DOUBTFUL = {  # the name is bound by something else too, or not where it is used
    f"{ENGINE}def f(engine):\n    return engine.LLMEngine, engine.step()\n": 1,
    f"{ENGINE}g = lambda engine: engine.LLMEngine\n": 1,
    f"{ENGINE}for engine in ():\n    engine.LLMEngine.x, engine.EngineCore\n": 2,
    f"try:\n    {ENGINE}except ImportError as engine:\n    engine.LLMEngine\n": 1,
    f"def f():\n    {ENGINE}def g():\n    return engine.LLMEngine\n": 1,
    f"class A:\n    {ENGINE}    def f(self):\n        return engine.LLMEngine\n": 1,
    f"{ENGINE}def f():\n    global engine\n    engine = engine.LLMEngine()\n": 1,
    f"{ENGINE}from os import path as engine\nengine.EngineCore\n": 1,
    f"{ENGINE}def f(x):\n    match x:\n        case [*engine]: return engine.EngineCore\n": 1,
    f"{ENGINE}from os import *\nengine.EngineCore\n": 1,
    "import mini_vllm.engine\ndef f(mini_vllm):\n    return mini_vllm.engine.LLMEngine\n": 1,
}
GONE = {
    "from mini_vllm.pool import Pool, nothing\n": (
        "from mini_vllm.core.pool import Pool\nfrom mini_vllm.pool import nothing\n",
        ["line 1: mini_vllm.pool is now mini_vllm.core.pool, which has no nothing"],
    ),
    "from mini_vllm.engine import Request, Reason\n": (
        "from mini_vllm.engine import Request, Reason\n",
        ["line 1: mini_vllm.engine has no Request (see Request in mini_vllm.request)"],
    ),
    "import mini_vllm.pool as p\np.nothing, p.__name__\n": (
        "import mini_vllm.core.pool as p\np.nothing, p.__name__\n",
        ["line 2, p.nothing: mini_vllm.pool is now mini_vllm.core.pool, which has no nothing"],
    ),
    "from mini_vllm import engine\nengine.no_such\n": (
        "from mini_vllm import engine\nengine.no_such\n",
        ["line 2, engine.no_such: mini_vllm.engine has no no_such"],
    ),
    "from mini_vllm.engine import *\n": (
        "from mini_vllm.engine import *\n",
        ["line 1: not all that mini_vllm.engine had is there now: name what you need in place of *"],
    ),
}


@pytest.mark.parametrize("source", DOUBTFUL)
def test_where_a_name_may_be_another_it_is_noted_and_left(source: str, tmp_path: Path) -> None:
    made = relocate.rewrite(source, moved.read(house(tmp_path)))
    assert made.text == source and not made.changes
    assert len(made.notes) == DOUBTFUL[source] and all(
        "if " in note and " is that of mini_vllm here" in note for note in made.notes
    )


@pytest.mark.parametrize("source", GONE)
def test_what_is_nowhere_is_left_and_noted(source: str, tmp_path: Path) -> None:
    made = relocate.rewrite(source, moved.read(house(tmp_path)))
    assert (made.text, made.notes) == GONE[source]


@pytest.mark.parametrize("source", ALIASES)
def test_a_name_that_its_module_has_lost_is_imported(source: str, tmp_path: Path) -> None:
    moves = moved.read(house(tmp_path))
    made = relocate.rewrite(source, moves)
    assert made.text == ALIASES[source]
    assert relocate.rewrite(made.text, moves).text == made.text
