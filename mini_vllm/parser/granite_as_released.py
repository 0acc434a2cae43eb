"""Granite's reasoning parser as vLLM 0.22.1 has it (`as_released.py`): thoughts of the step that ends them get lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.granite_reasoning_parser import RESPONSE_STARTS, THINK_STARTS, GraniteReasoningParser


class Sections(NamedTuple):
    """Of the text so far: thoughts, the answer, and how long the sentence between them is; None: not begun."""

    reasoning: str | None = None
    content: str | None = None
    sentence: int = 0


class GraniteReasoningAsReleased(GraniteReasoningParser):
    """Upstream: upstream/vllm/reasoning/granite_reasoning_parser.py:21 — `GraniteReasoningParser`."""

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """A step may end the thinking and start the answer: then it has both."""
        sections = split_sections(current_text)
        if not sections.reasoning:
            delta = _before_thoughts(current_text, delta_text)
        elif not sections.content:
            delta = _in_thoughts(current_text, sections.reasoning, delta_text)
        else:
            delta = _in_answer(sections.reasoning, sections.content, sections.sentence, current_text, delta_text)
        return delta if delta.content or delta.reasoning else None

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Never."""
        return False


def split_sections(text: str) -> Sections:
    """The answer starts at the first such sentence. Thoughts start only where the text does.

    Upstream: upstream/vllm/reasoning/granite_reasoning_parser.py:322 — `_get_content_sections`.
    """
    start = text.find(":") + 1  # the first colon must end the sentence
    while start and text[:start] not in THINK_STARTS:
        start = 0
    if not start:
        return Sections()
    ends = [(text.find(sentence, start), sentence) for sentence in RESPONSE_STARTS]
    found = min(((at, sentence) for at, sentence in ends if at >= 0), default=None)
    if found is None:
        return Sections(text[start:])
    at, sentence = found
    return Sections(text[start : max(at - 1, 0)], text[at + len(sentence) :], len(sentence))


def _may_become(sentences: tuple[str, ...], text: str) -> bool:
    return any(sentence.startswith(text) for sentence in sentences)


def _before_thoughts(text: str, delta_text: str) -> DeltaMessage:
    """Nothing while the first sentence may still come; when it cannot, all that was held back."""
    if _may_become(THINK_STARTS, text):
        return DeltaMessage(reasoning=None, content=None)
    held = _may_become(THINK_STARTS, text[: len(text) - len(delta_text)])
    return DeltaMessage(reasoning=None, content=text if held else delta_text)


def _in_thoughts(text: str, reasoning: str, delta_text: str) -> DeltaMessage:
    """Without an end that may become the second sentence; what was held back is released where it did not."""
    before = reasoning[: -len(delta_text)]
    at, new_at = before.rfind("Here"), delta_text.rfind("Here")
    if text.endswith(RESPONSE_STARTS) or (at >= 0 and _may_become(RESPONSE_STARTS, reasoning[at:])):
        return DeltaMessage(reasoning=None, content=None)
    released = before[at:] if at >= 0 and _may_become(RESPONSE_STARTS, before[at:]) else ""
    if new_at >= 0 and _may_become(RESPONSE_STARTS, delta_text[new_at:]):
        delta_text = delta_text[:new_at]
    return DeltaMessage(reasoning=released + delta_text, content=None)


def _in_answer(reasoning: str, content: str, sentence: int, text: str, delta_text: str) -> DeltaMessage:
    """The answer; thoughts too where this step holds the whole second sentence.

    Where they would start is counted from the text's end, as upstream does, so that thoughts which come in the same
    step as the answer are mostly lost.
    """
    end = len(delta_text) - len(content) - sentence
    start = len(reasoning) + sentence + len(content) - 1 - (len(text) - len(delta_text))
    thoughts = delta_text[max(start, 0) : end] if end >= 0 else None
    return DeltaMessage(reasoning=thoughts, content=delta_text[-len(content) :])
