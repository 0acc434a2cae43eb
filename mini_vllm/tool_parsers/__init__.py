"""Tool calls, out of what models write. Upstream twin: `vllm/tool_parsers/__init__.py`.

A parser is imported when its name is first asked for. Upstream registers 42 names; those that are not here can be
registered by a file of one's own (`--tool-parser-plugin`), written against the same interface.
"""

from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager

__all__ = ["ToolParser", "ToolParserManager"]

_TOOL_PARSERS_TO_REGISTER = {
    "hermes": ("hermes_tool_parser", "Hermes2ProToolParser"),
}
"""Name to (file, class)."""

for _name, (_file, _class) in _TOOL_PARSERS_TO_REGISTER.items():
    ToolParserManager.register_lazy_module(_name, f"{__name__}.{_file}", _class)
