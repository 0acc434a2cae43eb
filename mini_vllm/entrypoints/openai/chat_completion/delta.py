"""What is new of one answer: plain text as it comes, or what parsers make of it.

Upstream: upstream/vllm/parser/abstract_parser.py:659 — `DelegatingParser.parse_delta`, and the end of
upstream/vllm/entrypoints/openai/chat_completion/serving.py:400 — `chat_completion_stream_generator`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.choice import make_message
from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionLogProbs,
    ChatCompletionLogProbsContent,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
)
from mini_vllm.entrypoints.openai.chat_completion.sent import Sent, joined
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.logger import init_logger

logger = init_logger(__name__)


class DeltaMaker:
    """One per choice of a stream."""

    def __init__(self, parsers: Parsers, request: ChatCompletionRequest) -> None:
        self.parsers, self.request = parsers, request
        self.text, self.prompt_token_ids = "", list[int]()
        self.parser: Any = parsers.stream_parser(request)
        self.sent = Sent()
        self.held: list[ChatCompletionLogProbsContent] = []
        """Log-probabilities of the steps that a parser holds back."""

    def take(self, text: str, token_ids: list[int], prompt_token_ids: list[int]) -> DeltaMessage | None:
        """The delta of these tokens; None where a parser holds them back."""
        self.text, self.prompt_token_ids = self.text + text, prompt_token_ids
        if self.parser is None:
            return DeltaMessage(content=text)
        return self._admit(self.parser.parse_delta(text, token_ids, self.request, prompt_token_ids))

    def _admit(self, delta: DeltaMessage | None) -> DeltaMessage | None:
        return self.sent.admit(delta)

    def hold(self, logprobs: ChatCompletionLogProbs | None) -> None:
        """No event goes out for this step."""
        self.held = list(logprobs.content or ()) if logprobs else []

    def with_held(self, logprobs: ChatCompletionLogProbs | None) -> ChatCompletionLogProbs | None:
        """Of this step's tokens, behind those of the steps that were held back; upstream drops these."""
        if logprobs is None or not self.held:
            return logprobs
        held, self.held = self.held, []
        return ChatCompletionLogProbs(content=[*held, *(logprobs.content or ())])

    def shown(self, delta: DeltaMessage | None) -> DeltaMessage:
        """As it goes out: one tool call where several are not wanted."""
        delta = DeltaMessage() if delta is None else delta
        if delta.tool_calls and not self.request.parallel_tool_calls:
            delta.tool_calls = [call for call in delta.tool_calls if call.index == 0]
        return delta

    def finish(self, delta: DeltaMessage | None, ended: str) -> tuple[str, DeltaMessage | None]:
        """The reason that the client hears, and the last delta with what the client still lacks.

        An answer that was cut is told as such, in the middle of a call too; upstream's says "tool_calls" then.
        """
        if self.parser is None:
            return ended, delta
        delta = joined(delta, self._missing())
        tool_parser = self.parser.tool_parser
        called = tool_parser is not None and bool(tool_parser.prev_tool_call_arr)
        named = isinstance(self.request.tool_choice, ChatCompletionNamedToolChoiceParam)
        calls = called or (bool(self.sent.calls) and not named)
        return ("tool_calls" if calls and ended == "stop" else ended), delta

    def _missing(self) -> DeltaMessage | None:
        try:
            message, _ = make_message(self.request, self.parsers, "assistant", self.text, self.prompt_token_ids)
        except Exception:  # a parser from outside may raise anything; what went out stands
            logger.exception("The whole answer cannot be parsed; its stream ends as it is.")
            return None
        return self.sent.missing(message)
