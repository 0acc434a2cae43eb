"""Names of tool parsers: imported late, registered by users, from files."""

import pytest

pytest.importorskip("pydantic")

from mini_vllm.tool_parsers import ToolParser, ToolParserManager

PLUGIN = """
from mini_vllm.tool_parsers import ToolParser, ToolParserManager


@ToolParserManager.register_module(["from_a_file", "its_alias"])
class FromAFile(ToolParser):
    pass
"""


@pytest.fixture(autouse=True)
def names_as_before(monkeypatch):
    for name in ("parsers", "lazy_parsers"):
        monkeypatch.setattr(ToolParserManager, name, dict(getattr(ToolParserManager, name)))


def test_every_listed_name_can_be_imported():
    for name in ToolParserManager.list_registered():
        assert issubclass(ToolParserManager.get_tool_parser(name), ToolParser)


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(KeyError, match=r"'no_such' not found.*hermes"):
        ToolParserManager.get_tool_parser("no_such")


def test_a_plugin_registers_by_decorator(tmp_path):
    (tmp_path / "json.py").write_text(PLUGIN, encoding="utf-8")  # its name must not hide Python's json
    ToolParserManager.import_tool_parser(str(tmp_path / "json.py"))
    found = ToolParserManager.get_tool_parser("from_a_file")
    assert found.__name__ == "FromAFile" and ToolParserManager.get_tool_parser("its_alias") is found
    import json

    assert json.loads("1") == 1


@pytest.mark.parametrize("text", [None, "import no_such_module_of_anybody", "def broken("])
def test_a_plugin_that_cannot_be_loaded_is_an_error(tmp_path, text):
    path = tmp_path / "plugin.py"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"plugin .*plugin\.py.* cannot be loaded"):
        ToolParserManager.import_tool_parser(str(path))


def test_registering_at_once():
    class Mine(ToolParser):
        pass

    assert ToolParserManager.register_module("mine", module=Mine) is Mine
    assert ToolParserManager.register_module(module=Mine) is Mine
    assert ToolParserManager.get_tool_parser("mine") is ToolParserManager.get_tool_parser("Mine") is Mine
    with pytest.raises(KeyError, match="mine is already registered"):
        ToolParserManager.register_module("mine", force=False, module=Mine)


def test_what_is_no_tool_parser_is_refused():
    with pytest.raises(TypeError, match="subclass of ToolParser"):
        ToolParserManager.register_module("wrong", module=int)
    ToolParserManager.register_lazy_module("wrong", "builtins", "int")
    with pytest.raises(TypeError, match="subclass of ToolParser"):
        ToolParserManager.get_tool_parser("wrong")
    with pytest.raises(TypeError, match="name must be"):
        ToolParserManager.register_module([1, 2], module=ToolParser)


def test_a_missing_token_is_an_error():
    class Mine(ToolParser):
        pass

    with pytest.raises(RuntimeError, match=r"Mine could not locate <b> in the tokenizer"):
        Mine(type("Vocab", (), {"get_vocab": lambda self: {"<a>": 0}})()).require_tokens("<a>", "<b>")
    with pytest.raises(ValueError, match="tokenizer must be passed"):
        Mine(None).require_tokens("<a>")
