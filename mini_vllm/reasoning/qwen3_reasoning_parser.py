"""Qwen 3 and 3.5. Upstream twin: `vllm/reasoning/qwen3_reasoning_parser.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class Qwen3ReasoningParser(BaseThinkingReasoningParser):
    """Thinks from the first word unless the request says `enable_thinking: false`; a tool call ends the thinking too.

    Newer templates write <think> into the prompt, older models write it themselves: both are read. Where thinking is
    off, the template closes it in the prompt, and the server never asks this parser about the stream.

    Upstream: upstream/vllm/reasoning/qwen3_reasoning_parser.py:16 — `Qwen3ReasoningParser`.
    """

    start_token, end_token = "<think>", "</think>"
    tool_call_tag, tool_call_end_tag = "<tool_call>", "</tool_call>"

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self.thinking_enabled = (kwargs.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        self.tool_call_id, self.tool_call_end_id = map(self.vocab.get, (self.tool_call_tag, self.tool_call_end_tag))

    def _has_tool_call(self, ids: Iterable[int]) -> bool:
        return self.tool_call_id is not None and self.tool_call_id in ids

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """As its base; also a tool call behind <think> that is not closed: closed ones are a prompt's examples."""
        closed = False
        for token in reversed(input_ids):
            if token == self.start_token_id:
                return False
            if token == self.end_token_id or (token == self.tool_call_id and not closed):
                return True
            closed = closed or token == self.tool_call_end_id
        return False

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """</think> or <tool_call> is among the new tokens."""
        return super().is_reasoning_end_streaming(input_ids, delta_ids) or self._has_tool_call(delta_ids)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """What stands behind </think>, else the last tool call."""
        content = super().extract_content_ids(input_ids)
        if content or self.tool_call_id is None or not self._has_tool_call(input_ids):
            return content
        return input_ids[len(input_ids) - 1 - input_ids[::-1].index(self.tool_call_id) :]

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """An output without an end is all thought: it was cut. Where thinking is off, it is all answer."""
        text = self.without_start(model_output)
        reasoning, end, content = text.partition(self.end_token)
        if end:
            return reasoning, content or None
        if not self.thinking_enabled:
            return None, text
        call = text.find(self.tool_call_tag)
        return (text, None) if call < 0 else (text[:call] or None, text[call:])

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Thoughts until one of the two ends, the answer from then on."""
        if self.start_token_id in delta_token_ids:
            delta_text = self.without_start(delta_text)
        if self.end_token_id in delta_token_ids:
            reasoning, end, content = delta_text.partition(self.end_token)
            return _both(reasoning, content) if end else None
        if self._has_tool_call(delta_token_ids) and self.tool_call_tag in delta_text:
            call = delta_text.index(self.tool_call_tag)
            return _both(delta_text[:call], delta_text[call:])
        if not delta_text:
            return None
        if self.end_token_id in previous_token_ids or self._has_tool_call(previous_token_ids):
            return DeltaMessage(content=delta_text)
        return DeltaMessage(reasoning=delta_text)


def _both(reasoning: str, content: str) -> DeltaMessage | None:
    return DeltaMessage(reasoning=reasoning or None, content=content or None) if reasoning or content else None
