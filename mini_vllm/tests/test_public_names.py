"""`from mini_vllm import X`: every public name, fetched when it is asked for."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mini_vllm

SOURCE = Path(mini_vllm.__file__).read_text(encoding="utf-8")


def seen_by_type_checkers() -> dict[str, str]:
    """Name -> module, of the imports under `if TYPE_CHECKING`."""
    block = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_editors_see_what_can_be_imported():
    assert seen_by_type_checkers() == mini_vllm._MODULE_OF


@pytest.mark.parametrize("name", mini_vllm.__all__)
def test_a_name_is_the_object_of_its_module(name):
    assert getattr(mini_vllm, name) is getattr(import_module(mini_vllm._MODULE_OF[name]), name)


def test_the_import_alone_loads_nothing():
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import mini_vllm\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('mini_vllm', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['mini_vllm']"


def test_an_unknown_name_is_an_error_that_names_it():
    with pytest.raises(ImportError, match="cannot import name 'Schedular'"):
        exec("from mini_vllm import Schedular")
    with pytest.raises(AttributeError, match="has no attribute 'schedular'"):
        mini_vllm.schedular  # noqa: B018


def test_names_are_listed():
    assert set(mini_vllm.__all__) <= set(dir(mini_vllm))
