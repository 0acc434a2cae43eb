"""`mini_vllm.moved`: the table is true, and an import from a former place fails with the new one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course.tests.moved_fixtures import TABLE, house
from mini_vllm import moved

pytestmark = pytest.mark.maintainer

ASK = """\
import importlib.util, json, sys

sys.meta_path[:] = [each for each in sys.meta_path if "ditable" not in str(each)]  # an installed course knows more

def said(code):
    try:
        exec(code, {})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

print(json.dumps([said(code) for code in json.loads(sys.argv[1])]))
"""

NOW = {
    "from mini_vllm.pool import Pool": "mini_vllm.pool is now mini_vllm.core.pool; write `from mini_vllm import Pool`",
    "from mini_vllm.pool import Pool, Block": "write `from mini_vllm import Pool, Block`",
    "from mini_vllm.pool import Block as B": "write `from mini_vllm import Block`",
    "from mini_vllm.pool import LIMIT": "write `from mini_vllm.core.pool import LIMIT`",
    "from mini_vllm.pool import LIMIT, hash_block": (
        "write `from mini_vllm.core.pool import LIMIT; from mini_vllm.core.utils import hash_block`"
    ),
    "from mini_vllm.pool import *": "write `from mini_vllm.core.pool import *; from mini_vllm.core.utils import *`",
    "import mini_vllm.pool as p": "mini_vllm.pool is now mini_vllm.core.pool; write `import mini_vllm.core.pool`",
    "import importlib; importlib.import_module('mini_vllm.pool')": "write `import mini_vllm.core.pool`",
    "from mini_vllm import pool": "write `from mini_vllm.core import pool`",
    "from mini_vllm import Request, pool": "write `from mini_vllm.core import pool`",
    "import mini_vllm.moe.align": "mini_vllm.moe.align is now mini_vllm.layers.moe.align; write `import mini_vllm.lay",
    "from mini_vllm.moe import align": "write `from mini_vllm.layers.moe import align`",
    "from mini_vllm.models import layers": "write `from mini_vllm.layers import arithmetic as layers`",
    "from mini_vllm.engine import LLMEngine": (
        "LLMEngine of mini_vllm.engine is now in mini_vllm.engine.llm_engine; write `from mini_vllm import LLMEngine`"
    ),
}
ASKED = {
    "import mini_vllm.engine as e; e.EngineCore": (
        "EngineCore of mini_vllm.engine is now in mini_vllm.engine.core; write `from mini_vllm import EngineCore`"
    ),
    "import mini_vllm as mv; mv.pool.Pool": (
        "mini_vllm.pool is now mini_vllm.core.pool; write `import mini_vllm.core.pool`"
    ),
}
GONE = {
    "from mini_vllm.pool import nothing": "mini_vllm.pool is now mini_vllm.core.pool, which has no nothing",
    "from mini_vllm.pool import LLMEngine": (
        "mini_vllm.pool is now mini_vllm.core.pool, which has no LLMEngine (see LLMEngine in "
        "mini_vllm.engine.llm_engine)"
    ),
    "from mini_vllm.pool import Pool, no, one": (
        "mini_vllm.pool is now mini_vllm.core.pool, which has no no, no one; for the rest write "
        "`from mini_vllm import Pool`"
    ),
    "from mini_vllm.engine import hash_block": (
        "mini_vllm.engine has no hash_block (see hash_block in mini_vllm.core.utils)"
    ),
}
STILL = [
    "from mini_vllm.engine import core, Reason",
    "import mini_vllm.engine as e; assert not hasattr(e, 'nonsense') and not hasattr(e, '__wrapped__')",
    "from mini_vllm import Pool, Request, outputs",
    "import mini_vllm as mv; mv.request.Request, mv.core.utils, mv.Pool; assert not hasattr(mv, 'nonsense')",
    "import mini_vllm as mv; assert not hasattr(mv, 'pool') and getattr(mv, '_private', 1) == 1",
    "import mini_vllm.engine as e; assert not hasattr(e, 'LLMEngine') and getattr(e, 'EngineCore', 3) == 3",
    "import importlib.util as u; assert u.find_spec('mini_vllm.nonsense') is None and u.find_spec('mini_vllm.request')",
    "import mini_vllm, sys, importlib as i; m = sys.meta_path; n = len(m); i.reload(mini_vllm); assert n == len(m)",
]


def ask(root: Path, statements: list[str]) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", ASK, json.dumps(statements)]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_former_place_names_the_present_one(tmp_path: Path) -> None:
    house(tmp_path)
    for (code, words), said in zip(NOW.items(), ask(tmp_path, list(NOW)), strict=True):
        assert said.startswith("MovedError: ") and words in said, f"{code}: {said}"
        assert said.endswith(", or let `course update` rewrite your file"), said


def test_a_name_that_is_asked_of_a_module_is_an_attribute_error(tmp_path: Path) -> None:
    house(tmp_path)
    for words, said in zip(ASKED.values(), ask(tmp_path, list(ASKED)), strict=True):
        assert said == f"AttributeError: {words}, or let `course update` rewrite your file"


def test_what_is_gone_is_not_given_a_place(tmp_path: Path) -> None:
    house(tmp_path)
    for (code, words), said in zip(GONE.items(), ask(tmp_path, list(GONE)), strict=True):
        assert said == f"MovedError: {words}", code


def test_an_import_that_another_thread_got_in_the_way_of_is_made_again(tmp_path: Path) -> None:
    """As when two threads enter a circle of imports from two sides: Python ends one of the two with this error."""
    house(tmp_path)
    code = """\
import mini_vllm, importlib._bootstrap as b
real, asked = mini_vllm.import_module, []

def first_not(name):
    asked.append(name)
    if len(asked) < 3:
        raise b._DeadlockError("deadlock detected")
    return real(name)

mini_vllm.import_module = first_not
assert mini_vllm.Pool.__name__ == "Pool" and len(asked) == 3
"""
    assert ask(tmp_path, [code]) == [""]


def test_other_imports_are_as_before(tmp_path: Path) -> None:
    house(tmp_path)
    assert ask(tmp_path, STILL) == [""] * len(STILL)
    plain = ["import mini_vllm.nonsense", "from mini_vllm.engine import nonsense", "from mini_vllm import nonsense"]
    for said in ask(tmp_path, plain):
        assert "nonsense" in said and "MovedError" not in said and "course update" not in said


def test_an_import_loads_no_more_than_before() -> None:
    code = "import sys; a = set(sys.modules); import mini_vllm; print(*sorted(set(sys.modules) - a))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "mini_vllm" in loaded and not loaded & {"mini_vllm.moved", "tomllib", "ast", "dis", "numpy"}


def test_an_import_inside_of_a_function_reads_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python asks a module for `__path__` whenever something is imported from it: once a chat, in `LLM.chat`."""
    from mini_vllm.entrypoints import chat_utils

    monkeypatch.setattr(moved, "read", lambda: pytest.fail("the table of former places was read"))
    exec("from mini_vllm.entrypoints.chat_utils import apply_chat_template", {})
    assert not hasattr(chat_utils, "__path__")


def test_a_name_that_left_a_file_that_stands(tmp_path: Path) -> None:
    moves = moved.read(house(tmp_path))
    assert moved.sentence(moves, "mini_vllm.outputs", ["Reason"]).startswith(
        "Reason of mini_vllm.outputs is now in mini_vllm.engine; write `from mini_vllm import Reason`"
    )
    assert moved.sentence(moves, "mini_vllm.outputs", ["Output"]) == ""
    assert moves.place("mini_vllm.engine", "Reason") == ("mini_vllm.engine", "Reason")
    plain = ImportError("cannot import name 'x' from 'mini_vllm.request'", name="mini_vllm.request")
    assert moved.explain(plain) == "" and moved.explain(ImportError("No module named 'y'", name="y")) == ""


def test_without_a_table_nothing_moved(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    moves = moved.read(tmp_path)
    assert not moves.modules and moves.place("mini_vllm.pool", "Pool") == ("mini_vllm.pool", "Pool")
    assert TABLE.count("=") == len((small := moved.read(house(tmp_path))).modules) + len(small.names)


def test_the_table_is_of_one_piece() -> None:
    """No place is a former one too, unless a package has the name of a former module."""
    moves = moved.read()
    assert len(moves.modules) > 100 and moves.public["Scheduler"].startswith("mini_vllm.")
    for old, new in moves.modules.items():
        assert old != new and moves.modules.get(new, new) == new, f"{old} -> {new} -> {moves.modules[new]}"
    for (module, name), new in moves.names.items():
        assert module != new, f"{module}:{name} stands where it stood"
        again = moves.modules.get(new)
        assert again is None or again.startswith(f"{new}."), f"{module}:{name} -> {new}, itself a former place"


def test_what_the_table_names_is_there() -> None:
    moves = moved.read()
    assert len(moves.modules) > 100 and len(moves.names) > 50
    for old, new in moves.modules.items():
        assert moves.file(new), f"{old} -> {new}: there is no such file"
    for (module, name), new in moves.names.items():
        file = moves.file(new)
        assert file and name in moved.bound(file), f"{module}:{name} -> {new}: it is not there"
