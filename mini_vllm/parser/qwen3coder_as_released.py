"""Qwen 3 Coder's tool parser as vLLM 0.22.1 has it (`as_released.py`): one thing a step, so that it falls behind."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import regex as re

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.qwen3coder_tool_parser import (
    CALL,
    CALL_END,
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    Qwen3CoderToolParser,
    end_of_value,
)
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import arguments_delta, call_message, dumps

logger = init_logger(__name__)


class Qwen3CoderAsReleased(Qwen3CoderToolParser):
    """Upstream: upstream/vllm/tool_parsers/qwen3coder_tool_parser.py:41 — `Qwen3CoderToolParser`."""

    none_is_null = False

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._reset()

    def _reset(self) -> None:
        self.current_tool_index = 0
        self.is_tool_call_started = False
        self._next_function()

    def _next_function(self) -> None:
        self.function_name = ""
        self.header_sent = self.in_function = self.json_started = self.json_closed = False
        self.param_count = 0

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: ChatCompletionRequest,
    ) -> DeltaMessage | None:
        """One thing a step: text, a name, an opening brace, whole parameters, or the closing brace.

        So a step that brings several of them is behind; the server sends at the end what is missing. A step that
        passes to the next call sends nothing, and what it brings of text is lost.
        """
        if not previous_text:
            self._reset()
        if not delta_text:
            return self._end_of_stream(current_text, delta_token_ids)
        if self.json_closed and not self.in_function and current_text.count(CALL_END) > self.current_tool_index:
            self.current_tool_index += 1
            self._next_function()
            if self.current_tool_index >= current_text.count(CALL):
                self.is_tool_call_started = False
            return None
        if not self.is_tool_call_started:
            return self._text(current_text, delta_text, delta_token_ids)
        calls = current_text.split(CALL)[1:]
        if self.current_tool_index >= len(calls):
            return None
        # a start inside a call belongs to it, and so do the parts behind it, up to the first end
        call = CALL.join(calls[self.current_tool_index :])
        call, end, _ = call.partition(CALL_END)
        return self._call(call + end)

    def _end_of_stream(self, text: str, token_ids: Sequence[int]) -> DeltaMessage | None:
        """A token without text: an empty delta where all is said, for the reason why it ends."""
        if not token_ids or self.tool_call_end_token_id in token_ids:
            return None
        if re.search(r"<tool_call>.*?</tool_call>", text, re.DOTALL) and self.prev_tool_call_arr:
            return DeltaMessage(content="") if text.count(CALL) == text.count(CALL_END) else None
        return DeltaMessage(content="") if text and not self.is_tool_call_started else None

    def _text(self, text: str, delta_text: str, token_ids: Sequence[int]) -> DeltaMessage | None:
        """Outside of calls."""
        if CALL in delta_text or self.tool_call_start_token_id in token_ids:
            self.is_tool_call_started = True
            content, tag, _ = delta_text.partition(CALL)
            return DeltaMessage(content=content) if tag and content else None
        if not delta_text.strip() and text.rstrip().endswith(CALL_END):
            return None
        return DeltaMessage(content=delta_text)

    def _call(self, text: str) -> DeltaMessage | None:
        """`text`: the call that is being written, as far as it has come."""
        if not self.header_sent:
            return self._header(text)
        if not self.in_function:
            return None
        if not self.json_started:
            self.json_started = True
            return self._send("{")
        parameters = self._new_parameters(text)
        if parameters:
            return self._send(parameters)
        if self.json_closed or FUNCTION_END not in text:
            return None
        self.json_closed, self.in_function = True, False
        self._remember(text)
        return self._send("}")

    def _header(self, text: str) -> DeltaMessage | None:
        name, mark, _ = text.partition(FUNCTION)[2].partition(">")
        if not mark:
            return None
        self.function_name, self.header_sent, self.in_function = name, True, True
        self.prev_tool_call_arr.append({"name": name, "arguments": "{}"})
        self.streamed_args_for_tool.append("")
        function, tool_id = DeltaFunctionCall(name=name, arguments=""), f"call_{uuid.uuid4().hex[:24]}"
        call = DeltaToolCall(index=self.current_tool_index, id=tool_id, function=function, type="function")
        return call_message(call)

    def _send(self, arguments: str) -> DeltaMessage:
        if self.current_tool_index < len(self.streamed_args_for_tool):
            self.streamed_args_for_tool[self.current_tool_index] += arguments
        return call_message(arguments_delta(self.current_tool_index, arguments))

    def _new_parameters(self, text: str) -> str:
        """All parameters that have ended since, as JSON."""
        pairs = []
        starts = [found.end() for found in re.finditer(PARAMETER, text)]
        for start in starts[self.param_count :]:
            key, mark, value = text[start:].partition(">")
            value = value.removeprefix("\n")
            end = end_of_value(value)
            if not mark or end is None:
                break
            as_json = dumps(self._value(self.function_name, key, value[:end]))
            # the key as it stands: the model's own quotes in it would break the JSON, as upstream
            pairs.append(f'{", " if self.param_count else ""}"{key}": {as_json}')
            self.param_count += 1
        return "".join(pairs)

    def _remember(self, text: str) -> None:
        """The whole arguments, for the server's last word."""
        body = text.partition(FUNCTION)[2]
        if FUNCTION_END not in body or self.current_tool_index >= len(self.prev_tool_call_arr):
            return
        try:
            call = self._parse_function(body.partition(FUNCTION_END)[0])
        except Exception:
            logger.debug("Failed to parse tool call during streaming: %s", text, exc_info=True)
            return
        if call:
            self.prev_tool_call_arr[self.current_tool_index]["arguments"] = call.arguments
