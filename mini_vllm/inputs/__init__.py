"""What can be given as a prompt. Upstream twin: `vllm/inputs/__init__.py`."""

from mini_vllm.inputs.llm import PromptType, TextPrompt, TokensPrompt

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]
