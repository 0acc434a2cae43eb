"""DeepSeek R1, and many that follow it. Upstream twin: `vllm/reasoning/deepseek_r1_reasoning_parser.py`."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class DeepSeekR1ReasoningParser(BaseThinkingReasoningParser):
    """Thinks from the first word, for its template writes <think>.

    Upstream: upstream/vllm/reasoning/deepseek_r1_reasoning_parser.py:10 — `DeepSeekR1ReasoningParser`.
    """

    start_token, end_token = "<think>", "</think>"

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """As its base; where <think> has not come, text is thought until </think>."""
        delta = super().extract_reasoning_streaming(
            previous_text, current_text, delta_text, previous_token_ids, current_token_ids, delta_token_ids
        )
        started = self.start_token_id in previous_token_ids or self.start_token_id in delta_token_ids
        if delta is None or started:
            return delta
        if self.end_token_id in delta_token_ids:
            return self.split_at_end(delta_text)
        if self.end_token_id in previous_token_ids:
            return delta
        return DeltaMessage(reasoning=delta_text)
