"""Nemotron 3. Upstream twin: `vllm/reasoning/nemotron_v3_reasoning_parser.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser


class NemotronV3ReasoningParser(DeepSeekR1ReasoningParser):
    """Where thinking is switched off, or an answer must not be empty, thoughts without an answer are the answer.

    Upstream: upstream/vllm/reasoning/nemotron_v3_reasoning_parser.py:12 — `NemotronV3ReasoningParser`.
    """

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self.thinking_enabled = (kwargs.get("chat_template_kwargs") or {}).get("enable_thinking") is not False

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """As R1, then the exchange."""
        reasoning, content = super().extract_reasoning(model_output, request)
        asked = getattr(request, "chat_template_kwargs", None) or {}
        needs_content = asked.get("enable_thinking") is False or asked.get("force_nonempty_content") is True
        if needs_content and not (content and content.strip()):
            return content, reasoning
        return reasoning, content
