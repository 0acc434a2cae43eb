"""DeepSeek's tool parsers as vLLM 0.22.1 has them (`as_released.py`): one thing a step, and no line break in arguments.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import regex as re

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import (
    DeltaMessage,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser, no_tool_calls
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import arguments_delta, call_message, name_delta

logger = init_logger(__name__)
_NOTHING: dict[str, str] = {}


class DeepSeekV3AsReleased(ToolParser):
    """Counts the tokens that start and end a call; arguments are sent as the model wrote them.

    Two of upstream's habits are kept, since clients see them: arguments on several lines are cut, for a dot in the
    pattern is no line break; and the end of a call is sent only where its step has a text that ends in `"}`.

    Upstream: upstream/vllm/tool_parsers/deepseekv3_tool_parser.py:30 — `DeepSeekV3ToolParser`.
    """

    tool_calls_start_token, tool_calls_end_token = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    tool_call_start_token, tool_call_end_token = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    tool_call_regex = re.compile(
        r"<｜tool▁call▁begin｜>(?P<type>.*)<｜tool▁sep｜>(?P<name>.*)\n```json\n(?P<arguments>.*)\n```<｜tool▁call▁end｜>"
    )
    stream_tool_call_portion_regex = re.compile(r".*<｜tool▁sep｜>(?P<name>.*)\n```json\n(?P<arguments>.*[^\n`])")
    stream_tool_call_name_regex = re.compile(r".*<｜tool▁sep｜>(?P<name>.*)\n")

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.tool_calls_start_token_id, _ = self.require_tokens(self.tool_calls_start_token, self.tool_calls_end_token)
        self.tool_call_start_token_id = self.vocab.get(self.tool_call_start_token)
        self.tool_call_end_token_id = self.vocab.get(self.tool_call_end_token)

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """Whole calls; a cut one is dropped. A type other than "function" makes the whole answer text."""
        content, tag, _ = model_output.partition(self.tool_calls_start_token)
        if not tag:
            return no_tool_calls(model_output)
        try:
            tool_calls = [self._call(found.groupdict()) for found in self.tool_call_regex.finditer(model_output)]
        except Exception:
            logger.exception("Error in extracting tool call from response.")
            return no_tool_calls(model_output)
        return ExtractedToolCallInformation(tools_called=True, tool_calls=tool_calls, content=content or None)

    @staticmethod
    def _call(found: dict[str, Any]) -> ToolCall:
        function = FunctionCall(name=found["name"], arguments=found["arguments"])
        return ToolCall(type=found.get("type", "function"), function=function)

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
        """Text, then of each call its name and what its arguments have grown by."""
        if self.tool_calls_start_token_id not in current_token_ids:
            return DeltaMessage(content=delta_text)
        delta_text = delta_text.replace(self.tool_calls_start_token, "").replace(self.tool_calls_end_token, "")
        marks = (self.tool_call_start_token_id, self.tool_call_end_token_id)
        started, ended = (sum(token == mark for token in current_token_ids) for mark in marks)
        started_before, ended_before = (sum(token == mark for token in previous_token_ids) for mark in marks)
        closes = self.tool_call_end_token in delta_text
        try:
            if started == ended == ended_before and not closes:
                return DeltaMessage(content=delta_text)
            portion = None
            if closes:
                portion = self._last_call(current_text + delta_text).split(self.tool_call_end_token)[0].rstrip()
                delta_text = delta_text.split(self.tool_call_end_token)[0].rstrip()
            if started > ended and started > started_before:
                portion = self._last_call(current_text) if len(delta_token_ids) > 1 else None
                self._start()
            elif started > ended and started == started_before:
                portion = self._last_call(current_text)
            elif started == ended and ended >= ended_before:
                if not self.prev_tool_call_arr:
                    return None
                if self.prev_tool_call_arr[self.current_tool_id].get("arguments"):
                    return self._close(delta_text)
            else:
                text = delta_text.replace(self.tool_call_start_token, "").replace(self.tool_call_end_token, "")
                return DeltaMessage(tool_calls=[], content=text)
            return self._grow(portion)
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None

    def _last_call(self, text: str) -> str:
        return text.split(self.tool_call_start_token)[-1]

    def _start(self) -> None:
        self.current_tool_id += 1
        self.current_tool_name_sent = False
        self.streamed_args_for_tool.append("")

    def _close(self, delta_text: str) -> DeltaMessage | None:
        """The call ends in this step: what stands before its end."""
        if '"}' not in delta_text:
            return None
        rest = delta_text[: delta_text.rindex('"}')] + '"}'
        self.streamed_args_for_tool[self.current_tool_id] += rest
        return call_message(arguments_delta(self.current_tool_id, rest))

    def _grow(self, portion: str | None) -> DeltaMessage | None:
        """`portion`: the call as far as it has come, without its token; None: only its token has."""
        call = _NOTHING
        if portion:
            found = self._read(portion)
            if found is None:
                return None
            call = found
        if not self.current_tool_name_sent:
            if not call.get("name"):
                return None
            self.current_tool_name_sent = True
            return call_message(name_delta(self.current_tool_id, call["name"]))
        if portion is None:
            return None
        return self._grow_arguments(call)

    def _read(self, portion: str) -> dict[str, str] | None:
        found = self.stream_tool_call_portion_regex.match(portion)
        if found:
            return found.groupdict()
        named = self.stream_tool_call_name_regex.match(portion)
        return {"name": named["name"], "arguments": ""} if named else None

    def _grow_arguments(self, call: dict[str, str]) -> DeltaMessage | None:
        index, delta = self.current_tool_id, None
        if len(self.prev_tool_call_arr) <= index:
            self.prev_tool_call_arr.append({})
        before, after = self.prev_tool_call_arr[index].get("arguments") or "", call.get("arguments") or ""
        if len(after) > len(before) and after.startswith(before):
            delta = call_message(arguments_delta(index, after[len(before) :]))
            self.streamed_args_for_tool[index] = after
        if index == len(self.prev_tool_call_arr) - 1:
            self.prev_tool_call_arr[index] = call
        else:
            self.prev_tool_call_arr.append(call)
        return delta


class DeepSeekV31AsReleased(DeepSeekV3AsReleased):
    """As V3, with a shorter syntax; upstream writes the parser out again.

    Upstream: upstream/vllm/tool_parsers/deepseekv31_tool_parser.py:27 — `DeepSeekV31ToolParser`.
    """

    tool_call_regex = re.compile(
        r"<｜tool▁call▁begin｜>(?P<name>.*?)<｜tool▁sep｜>(?P<arguments>.*?)<｜tool▁call▁end｜>"
    )
    stream_tool_call_portion_regex = re.compile(r"(?P<name>.*)<｜tool▁sep｜>(?P<arguments>.*)")
    stream_tool_call_name_regex = re.compile(r"(?P<name>.*)<｜tool▁sep｜>")
