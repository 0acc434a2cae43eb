"""Granite 3. Upstream twin: `vllm/tool_parsers/granite_tool_parser.py`.

<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

from __future__ import annotations

import json
from collections.abc import Sequence

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
from mini_vllm.tool_parsers.utils import dumps, is_complete_json, partial_json_loads

logger = init_logger(__name__)


class GraniteToolParser(PartialJsonToolParser):
    """The answer is a list of calls, behind a token (3.0) or a tag (3.1), or it is text.

    Upstream: upstream/vllm/tool_parsers/granite_tool_parser.py:38 — `GraniteToolParser`.
    """

    bot_token, bot_string = "<|tool_call|>", "<tool_call>"

    def _body(self, text: str) -> str:
        return text.lstrip().removeprefix(self.bot_token).lstrip().removeprefix(self.bot_string).lstrip()

    def _may_begin_calls(self, text: str) -> bool:
        """Nothing yet but a token or tag, or the beginning of one."""
        body = self._body(text)
        return bool(text) and (not body or any(tag.startswith(body) for tag in (self.bot_token, self.bot_string)))

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """All of it must be the list."""
        body = model_output.strip().removeprefix(self.bot_token).removeprefix(self.bot_string).lstrip()
        if not body.startswith("["):
            return no_tool_calls(model_output)
        try:
            calls = [FunctionCall(name=call["name"], arguments=dumps(call["arguments"])) for call in json.loads(body)]
        except Exception as error:
            logger.error("Error in extracting tool call from response %s", error)
            return no_tool_calls(model_output)
        tool_calls = [ToolCall(function=call) for call in calls]
        return ExtractedToolCallInformation(tools_called=True, tool_calls=tool_calls, content=None)

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
        """Text until a list has begun, then one part of a call a step.

        The token or tag before the list is held back: upstream sends it as text.
        """
        body = self._body(current_text)
        if not body.startswith("["):
            if self._may_begin_calls(current_text):
                return None
            held = previous_text if self._may_begin_calls(previous_text) else ""
            return DeltaMessage(content=held + delta_text)
        try:
            calls, size = partial_json_loads(body, self.allowed())
            is_complete = [True] * len(calls)
            if not is_complete_json(body[:size]):
                is_complete[-1] = False
            return self.next_delta(calls, is_complete)
        except malformed_json():
            return None
        except Exception as error:
            logger.error("Error trying to handle streaming tool call: %s", error)
            return None
