"""Hermes, Qwen 2.5 and many others. Upstream twin: `vllm/tool_parsers/hermes_tool_parser.py`.

Let me see. <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import regex as re

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import (
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser, no_tool_calls
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import arguments_delta, dumps, is_complete_json, name_delta, partial_tag_overlap

logger = init_logger(__name__)


class Hermes2ProToolParser(ToolParser):
    """Reads the whole text again in each step, and sends what is new in it.

    Only text before the first call is content. Arguments are sent as the model wrote them, spaces included, where the
    answer is streamed; as a whole they are read and written again.

    Upstream: upstream/vllm/tool_parsers/hermes_tool_parser.py:34 — `Hermes2ProToolParser`.
    """

    keeps_special_tokens = True
    tool_call_start_token = "<tool_call>"
    tool_call_end_token = "</tool_call>"
    tool_call_regex = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
    """A call up to its end, or up to where the answer was cut."""

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.require_tokens()
        self._sent_content_idx = 0

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """One call that is not JSON makes the whole answer text."""
        content, tag, _ = model_output.partition(self.tool_call_start_token)
        if not tag:
            return no_tool_calls(model_output)
        try:
            raw = [json.loads(whole or cut) for whole, cut in self.tool_call_regex.findall(model_output)]
            calls = [FunctionCall(name=call["name"], arguments=dumps(call["arguments"])) for call in raw]
        except Exception:
            logger.exception("Error in extracting tool call from response.")
            return no_tool_calls(model_output)
        tool_calls = [ToolCall(function=call) for call in calls]
        return ExtractedToolCallInformation(tools_called=True, tool_calls=tool_calls, content=content or None)

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
        """Text before the first call, then of each call its name and the arguments that have come."""
        content = self._new_content(current_text)
        deltas: list[DeltaToolCall] = []
        for index, (body, is_complete) in enumerate(self._call_bodies(current_text)):
            if index == len(self.prev_tool_call_arr):
                self.prev_tool_call_arr.append({})
                self.streamed_args_for_tool.append("")
            if "name" not in self.prev_tool_call_arr[index]:
                name = re.search(r'"name"\s*:\s*"([^"]+)"', body)
                if not name:
                    break  # the next call waits for this one
                self.prev_tool_call_arr[index]["name"] = name.group(1)
                deltas.append(name_delta(index, name.group(1)))
            arguments = self._new_arguments(index, body, is_complete)
            if arguments:
                deltas.append(arguments_delta(index, arguments))
        return DeltaMessage(content=content, tool_calls=deltas) if content or deltas else None

    def _new_content(self, text: str) -> str | None:
        """Text before the first tag, without an end that may become one."""
        end = text.find(self.tool_call_start_token)
        if end < 0:
            end = len(text) - partial_tag_overlap(text, self.tool_call_start_token)
        start, self._sent_content_idx = self._sent_content_idx, max(end, self._sent_content_idx)
        return text[start:end] or None

    def _call_bodies(self, text: str) -> list[tuple[str, bool]]:
        """What stands between the tags, each with whether all of it is there; the last one may be cut."""
        bodies = []
        for call in self.tool_call_regex.finditer(text):
            if call.group(1) is not None:
                bodies.append((call.group(1).strip(), True))
                continue
            body = call.group(2)
            body = body[: len(body) - partial_tag_overlap(body, self.tool_call_end_token)].strip()
            bodies.append((body, bool(body) and is_complete_json(body)))
        return bodies

    def _new_arguments(self, index: int, body: str, is_complete: bool) -> str | None:
        """What follows "arguments", without the brace that closes the call itself, as far as it was not sent."""
        key = re.search(r'"arguments"\s*:\s*', body)
        if not key:
            return None
        arguments = body[key.end() :]
        if is_complete:
            arguments = arguments.rstrip()
            if arguments.endswith("}"):
                arguments = arguments[:-1].rstrip()
        sent = self.streamed_args_for_tool[index]
        if len(arguments) <= len(sent):
            return None
        self.streamed_args_for_tool[index] = self.prev_tool_call_arr[index]["arguments"] = arguments
        return arguments[len(sent) :]
