"""What is new of one answer: plain text as it comes, or what parsers make of it.

Upstream: upstream/vllm/parser/abstract_parser.py:659 — `DelegatingParser.parse_delta`, and the end of
upstream/vllm/entrypoints/openai/chat_completion/serving.py:400 — `chat_completion_stream_generator`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
)
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage


class DeltaMaker:
    """One per choice of a stream."""

    def __init__(self, parsers: Parsers, request: ChatCompletionRequest) -> None:
        self.request = request
        self.text = ""
        self.parser: Any = parsers.stream_parser(request)
        self.tools_streamed = False

    def take(self, text: str, token_ids: list[int], prompt_token_ids: list[int]) -> DeltaMessage | None:
        """The delta of these tokens; None where a parser holds them back."""
        self.text += text
        if self.parser is None:
            return DeltaMessage(content=text)
        delta = self.parser.parse_delta(text, token_ids, self.request, prompt_token_ids)
        if delta is not None and delta.tool_calls:
            self.tools_streamed = True
        return delta

    def shown(self, delta: DeltaMessage | None) -> DeltaMessage:
        """As it goes out: one tool call where several are not wanted."""
        delta = DeltaMessage() if delta is None else delta
        if delta.tool_calls and not self.request.parallel_tool_calls:
            delta.tool_calls = [call for call in delta.tool_calls if call.index == 0]
        return delta

    def finish(self, delta: DeltaMessage | None, ended: str) -> tuple[str, DeltaMessage | None]:
        """The reason that the client hears, and the last delta with what the parser still held."""
        if self.parser is None:
            return ended, delta
        called, delta = self.parser.finish(delta)
        named = isinstance(self.request.tool_choice, ChatCompletionNamedToolChoiceParam)
        return ("tool_calls" if called or (self.tools_streamed and not named) else ended), delta
