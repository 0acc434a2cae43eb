"""Tool calls, out of what models write. Upstream twin: `vllm/tool_parsers/__init__.py`.

A parser is imported when its name is first asked for. Upstream registers 42 names; those that are not here can be
registered by a file of one's own (`--tool-parser-plugin`), written against the same interface.
"""

from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager

__all__ = ["ToolParser", "ToolParserManager"]

_TOOL_PARSERS_TO_REGISTER = {
    "deepseek_v3": ("deepseekv3_tool_parser", "DeepSeekV3ToolParser"),
    "deepseek_v31": ("deepseekv31_tool_parser", "DeepSeekV31ToolParser"),
    "granite": ("granite_tool_parser", "GraniteToolParser"),
    "hermes": ("hermes_tool_parser", "Hermes2ProToolParser"),
    "internlm": ("internlm2_tool_parser", "Internlm2ToolParser"),
    "jamba": ("jamba_tool_parser", "JambaToolParser"),
    "llama3_json": ("llama_tool_parser", "Llama3JsonToolParser"),
    "llama4_json": ("llama_tool_parser", "Llama3JsonToolParser"),
    "mimo": ("qwen3xml_tool_parser", "Qwen3XMLToolParser"),
    "mistral": ("mistral_tool_parser", "MistralToolParser"),
    "pythonic": ("pythonic_tool_parser", "PythonicToolParser"),
    "qwen3_coder": ("qwen3coder_tool_parser", "Qwen3CoderToolParser"),
    "qwen3_xml": ("qwen3xml_tool_parser", "Qwen3XMLToolParser"),
}
"""Name to (file, class)."""

for _name, (_file, _class) in _TOOL_PARSERS_TO_REGISTER.items():
    ToolParserManager.register_lazy_module(_name, f"{__name__}.{_file}", _class)
