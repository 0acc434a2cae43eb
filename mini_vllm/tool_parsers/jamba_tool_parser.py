"""Jamba. Upstream twin: `vllm/tool_parsers/jamba_tool_parser.py`.

<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>
"""

from __future__ import annotations

import json
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
from mini_vllm.tool_parsers.abstract_tool_parser import no_tool_calls
from mini_vllm.tool_parsers.json_calls import PartialJsonToolParser, malformed_json
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import dumps

logger = init_logger(__name__)


class JambaToolParser(PartialJsonToolParser):
    """One list of calls between two tokens.

    Upstream: upstream/vllm/tool_parsers/jamba_tool_parser.py:33 — `JambaToolParser`.
    """

    keeps_special_tokens = True
    tool_calls_start_token, tool_calls_end_token = "<tool_calls>", "</tool_calls>"
    tool_calls_regex = re.compile(r"<tool_calls>(.*?)</tool_calls>", re.DOTALL)

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        ids = self.require_tokens(self.tool_calls_start_token, self.tool_calls_end_token)
        self.tool_calls_start_token_id, self.tool_calls_end_token_id = ids

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """The first list; a list without its end is text."""
        content, tag, _ = model_output.partition(self.tool_calls_start_token)
        if not tag:
            return no_tool_calls(model_output)
        try:
            raw = json.loads(self.tool_calls_regex.findall(model_output)[0])
            calls = [FunctionCall(name=call["name"], arguments=dumps(call["arguments"])) for call in raw]
        except Exception:
            logger.exception("Error in extracting tool call from response.")
            return no_tool_calls(model_output)
        content_or_none = content if content not in ("", " ") else None
        tool_calls = [ToolCall(function=call) for call in calls]
        return ExtractedToolCallInformation(tools_called=True, tool_calls=tool_calls, content=content_or_none)

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
        """Text before the list, then one part of a call a step."""
        if self.tool_calls_start_token not in current_text:
            return DeltaMessage(content=delta_text)
        if list(delta_token_ids) == [self.tool_calls_start_token_id]:
            return None
        import partial_json_parser

        body = current_text.split(self.tool_calls_start_token)[-1].split(self.tool_calls_end_token)[0]
        try:
            calls = partial_json_parser.loads(body, self.allowed())
            return self._next(calls, delta_text)
        except malformed_json():
            return None
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None

    def _next(self, calls: list[Any], delta_text: str) -> DeltaMessage | None:
        if not calls or len(calls) > self.current_tool_id + 1 or not self.current_tool_name_sent:
            return self.next_delta(calls, [])
        before = self.prev_tool_call_arr[self.current_tool_id].get("arguments")
        after = calls[self.current_tool_id].get("arguments")
        delta = self.grown_arguments(before, after, delta_text)
        self.prev_tool_call_arr = calls
        return delta
