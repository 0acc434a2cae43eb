"""Thoughts between two tokens. Upstream twin: `vllm/reasoning/basic_parsers.py`.

    <think>The capital of France… Paris.</think>It is Paris.

Tokens are asked, not texts: a special token comes whole, so that nothing has to be held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.abs_reasoning_parsers import ReasoningParser


class BaseThinkingReasoningParser(ReasoningParser):
    """A subclass names its two tokens. Raises RuntimeError where the vocabulary lacks one of them.

    As a stream, text is thought only behind the first token; as a whole, all text is thought up to the second one.

    Upstream: upstream/vllm/reasoning/basic_parsers.py:18 — `BaseThinkingReasoningParser`.
    """

    start_token: ClassVar[str]
    end_token: ClassVar[str]

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        if not tokenizer:
            raise ValueError(
                "The model tokenizer must be passed to the ReasoningParser constructor during construction."
            )
        if not self.start_token or not self.end_token:
            raise ValueError("start_token and end_token must be defined in subclasses")
        start, end = self.vocab.get(self.start_token), self.vocab.get(self.end_token)
        if start is None or end is None:
            raise RuntimeError(
                f"{type(self).__name__} reasoning parser could not locate think start/end tokens in the tokenizer! "
                f"They are {self.start_token} and {self.end_token}."
            )
        self.start_token_id, self.end_token_id = start, end

    @property
    def reasoning_start_str(self) -> str | None:
        """The first token's text."""
        return self.start_token

    @property
    def reasoning_end_str(self) -> str | None:
        """The second token's text."""
        return self.end_token

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """The last of the two tokens is the second."""
        marks = (self.start_token_id, self.end_token_id)
        return next((token == self.end_token_id for token in reversed(input_ids) if token in marks), False)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """The second token is among the new ones."""
        return self.end_token_id in delta_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """What stands behind the second token; nothing without it."""
        if self.end_token_id not in input_ids:
            return []
        return input_ids[input_ids.index(self.end_token_id) + 1 :]

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens inside a pair, which may stand in another; the pair itself does not count."""
        count = depth = 0
        for token in token_ids:
            if token == self.start_token_id:
                depth += 1
            elif token == self.end_token_id:
                depth = max(depth - 1, 0)
            else:
                count += depth > 0
        return count

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """Up to the second token, and behind it; the first one may be missing, since many prompts end with it."""
        reasoning, end, content = self.without_start(model_output).partition(self.end_token)
        return reasoning, content or None if end else None

    def without_start(self, text: str) -> str:
        """What stands behind the first token, if it is there; text in front of it is dropped."""
        before, start, behind = text.partition(self.start_token)
        return behind if start else before

    def text_of_first_step(self, delta_text: str) -> str:
        """Without the first token, as in a whole answer. Upstream sends it as a thought if more comes in the step."""
        return self.without_start(delta_text)

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """A step that is one of the two tokens and nothing else says nothing."""
        if len(delta_token_ids) == 1 and delta_token_ids[0] in (self.start_token_id, self.end_token_id):
            return None
        if self.start_token_id in delta_token_ids:
            delta_text = self.text_of_first_step(delta_text)
        started_before = self.start_token_id in previous_token_ids
        if not started_before and self.start_token_id not in delta_token_ids:
            return DeltaMessage(content=delta_text)
        if self.end_token_id in delta_token_ids:
            start = delta_text.find(self.start_token)
            has_start = start >= 0 and not started_before
            return self.split_at_end(delta_text, start + len(self.start_token) if has_start else 0)
        if started_before and self.end_token_id in previous_token_ids:
            return DeltaMessage(content=delta_text)
        return DeltaMessage(reasoning=delta_text)

    def split_at_end(self, text: str, start: int = 0) -> DeltaMessage:
        """Thoughts from `start` up to the second token, and the answer behind it."""
        end = text.find(self.end_token)
        return DeltaMessage(reasoning=text[start:end], content=text[end + len(self.end_token) :] or None)
