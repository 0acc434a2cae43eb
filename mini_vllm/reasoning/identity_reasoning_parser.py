"""A model that does not think aloud. Upstream twin: `vllm/reasoning/identity_reasoning_parser.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.abs_reasoning_parsers import ReasoningParser


class IdentityReasoningParser(ReasoningParser):
    """All of it is the answer.

    Upstream: upstream/vllm/reasoning/identity_reasoning_parser.py:20 — `IdentityReasoningParser`.
    """

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Always."""
        return True

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Always."""
        return True

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """All of them."""
        return input_ids

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """No thoughts."""
        return None, model_output

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """The step's text, if it has any."""
        return DeltaMessage(content=delta_text) if delta_text else None
