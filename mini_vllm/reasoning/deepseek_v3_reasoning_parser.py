"""DeepSeek V3, GLM 4.5 and Holo 2. Upstream twin: `vllm/reasoning/deepseek_v3_reasoning_parser.py`.

These models think where the request's `chat_template_kwargs` say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from mini_vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from mini_vllm.reasoning.identity_reasoning_parser import IdentityReasoningParser

_SWITCHES = ("thinking", "enable_thinking")


class DeepSeekV3ReasoningParser(ReasoningParser):
    """R1's parser where one of two switches is on, else none at all.

    Upstream: upstream/vllm/reasoning/deepseek_v3_reasoning_parser.py:23 — `DeepSeekV3ReasoningParser`.
    """

    thinks_unless_told: ClassVar[bool] = False
    thinking_parser: ClassVar[type[ReasoningParser]] = DeepSeekR1ReasoningParser

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        asked = kwargs.get("chat_template_kwargs") or {}
        told = [asked[name] for name in _SWITCHES if asked.get(name) is not None]
        thinks = any(told) if told else self.thinks_unless_told
        chosen = self.thinking_parser if thinks else IdentityReasoningParser
        self._parser: ReasoningParser = chosen(tokenizer, *args, **kwargs)

    @property
    def reasoning_start_str(self) -> str | None:
        """The chosen parser's."""
        return self._parser.reasoning_start_str

    @property
    def reasoning_end_str(self) -> str | None:
        """The chosen parser's."""
        return self._parser.reasoning_end_str

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """The chosen parser's."""
        return self._parser.is_reasoning_end(input_ids)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """The chosen parser's."""
        return self._parser.is_reasoning_end_streaming(input_ids, delta_ids)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The chosen parser's."""
        return self._parser.extract_content_ids(input_ids)

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """The chosen parser's."""
        return self._parser.extract_reasoning(model_output, request)

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """The chosen parser's."""
        return self._parser.extract_reasoning_streaming(
            previous_text, current_text, delta_text, previous_token_ids, current_token_ids, delta_token_ids
        )


class DeepSeekV3ReasoningWithThinkingParser(DeepSeekV3ReasoningParser):
    """Thinks unless it is told not to.

    Upstream: upstream/vllm/reasoning/deepseek_v3_reasoning_parser.py:86 — `DeepSeekV3ReasoningWithThinkingParser`.
    """

    thinks_unless_told = True
