"""What a model thinks, apart from what it answers. Upstream twin: `vllm/reasoning/__init__.py`.

A parser is imported when its name is first asked for. Upstream registers 25 names, some of which share a class; those
that are not here can be registered by a file of one's own.
"""

from mini_vllm.reasoning.abs_reasoning_parsers import ReasoningParser, ReasoningParserManager

__all__ = ["ReasoningParser", "ReasoningParserManager"]

_REASONING_PARSERS_TO_REGISTER = {
    "deepseek_r1": ("deepseek_r1_reasoning_parser", "DeepSeekR1ReasoningParser"),
    "deepseek_v3": ("deepseek_v3_reasoning_parser", "DeepSeekV3ReasoningParser"),
    "deepseek_v4": ("deepseek_v3_reasoning_parser", "DeepSeekV3ReasoningParser"),
    "glm45": ("deepseek_v3_reasoning_parser", "DeepSeekV3ReasoningWithThinkingParser"),
    "granite": ("granite_reasoning_parser", "GraniteReasoningParser"),
    "holo2": ("deepseek_v3_reasoning_parser", "DeepSeekV3ReasoningWithThinkingParser"),
    "mimo": ("qwen3_reasoning_parser", "Qwen3ReasoningParser"),
    "nemotron_v3": ("nemotron_v3_reasoning_parser", "NemotronV3ReasoningParser"),
    "qwen3": ("qwen3_reasoning_parser", "Qwen3ReasoningParser"),
    "seed_oss": ("seedoss_reasoning_parser", "SeedOSSReasoningParser"),
}
"""Name to (file, class)."""

for _name, (_file, _class) in _REASONING_PARSERS_TO_REGISTER.items():
    ReasoningParserManager.register_lazy_module(_name, f"{__name__}.{_file}", _class)
