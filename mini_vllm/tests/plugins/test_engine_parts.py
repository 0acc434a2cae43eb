"""Entry points: one that is missing, double or broken is named, with what to run."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from mini_vllm import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.plugins import engine_parts as plugins

GROUP = plugins.ENGINE_PARTS_GROUP
OURS = EngineParts(origins={"block pool": "a plugin"})


@pytest.fixture
def installed(monkeypatch):
    """Says what is installed, in the place of what is."""

    def install(*values):
        points = EntryPoints(EntryPoint(f"one-{i}", value, GROUP) for i, value in enumerate(values))
        monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))
        monkeypatch.setattr(plugins, "_REGISTERED", {})

    return install


def provide(with_labs):
    return OURS


def test_the_one_that_is_installed_gives_the_parts(installed):
    installed(f"{__name__}:provide")
    assert LLMEngine(with_labs="all").engine_core.parts is OURS


def test_one_that_is_registered_comes_first(installed):
    installed()
    plugins.register(GROUP, provide)
    assert LLMEngine(with_labs="all").engine_core.parts is OURS


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((), r"with_labs needs the entry point 'mini_vllm.engine_parts', .*`pip install -e \.` in its clone"),
        (("a:b", "c:d"), "with_labs needs one entry point 'mini_vllm.engine_parts', found 2: a:b, c:d"),
        (("no_such_module:parts",), "'no_such_module:parts', which does not load: No module named 'no_such_module'"),
        (("math:no_such_name",), "'math:no_such_name', which does not load: .*no_such_name"),
    ],
)
def test_a_bad_entry_point_is_an_error_that_says_what_to_do(installed, values, text):
    installed(*values)
    with pytest.raises(ImportError, match=text):
        LLMEngine(with_labs="all")


def test_without_labs_nobody_is_asked(installed):
    installed("no_such_module:parts")
    LLMEngine()
