"""Granite 3.2. Upstream twin: `vllm/reasoning/granite_reasoning_parser.py`.

    Here is my thought process: … Here is my response: …

No special tokens: the sentences come in pieces, and a piece that may become one of them is held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import regex as re

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from mini_vllm.tool_parsers.utils import partial_tag_overlap

THINK_STARTS = ("Here's my thought process:", "Here is my thought process:")
RESPONSE_STARTS = ("Here's my response:", "Here is my response:")


class GraniteReasoningParser(ReasoningParser):
    """It asks texts alone, so it cannot tell a grammar where thinking ends; nor can upstream's.

    A tool parser is told: upstream's stream has no calls, since its thinking never ends there.

    Upstream: upstream/vllm/reasoning/granite_reasoning_parser.py:21 — `GraniteReasoningParser`.
    """

    reasoning_regex = re.compile(
        r"(?:Here's|Here is) my thought process:(.*?)(?:Here's|Here is) my response:(.*)", re.DOTALL
    )

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self.ended = False

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Tokens alone do not tell."""
        return False

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """As above: none."""
        return []

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """Both sentences, else all of it is the answer."""
        found = self.reasoning_regex.search(model_output)
        return (found[1], found[2] or None) if found else (None, model_output)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Of the parser that reads the stream's text: whether the answer has begun."""
        return self.ended

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
        reasoning, content = thoughts_and_answer(current_text)
        self.ended = content is not None
        sent = thoughts_and_answer(previous_text or "")
        new = reasoning[len(sent[0]) :], (content or "")[len(sent[1] or "") :]
        return DeltaMessage(reasoning=new[0] or None, content=new[1] or None) if any(new) else None


def thoughts_and_answer(text: str) -> tuple[str, str | None]:
    """Of a text that may go on; the answer is None until it begins. What may become a sentence waits.

    Thoughts start only where the text does; the answer starts at the first sentence that starts one.
    """
    start = next((len(sentence) for sentence in THINK_STARTS if text.startswith(sentence)), None)
    if start is None:
        return "", None if any(sentence.startswith(text) for sentence in THINK_STARTS) else text
    found = min(
        ((at, sentence) for sentence in RESPONSE_STARTS if (at := text.find(sentence, start)) >= 0), default=None
    )
    if found is not None:
        return text[start : found[0]], text[found[0] + len(found[1]) :]
    waits = max(partial_tag_overlap(text[start:], sentence) for sentence in RESPONSE_STARTS)
    return text[start : len(text) - waits], None
