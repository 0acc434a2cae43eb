"""Llama 3 and 4 with JSON. Upstream twin: `vllm/tool_parsers/llama_tool_parser.py`.

<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": ...}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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


class Llama3JsonToolParser(PartialJsonToolParser):
    """Objects behind one another, the arguments under either of two names.

    A vocabulary without `bot_token` will do, as pocket's, which writes a bare object. Upstream's raises RuntimeError.

    As a whole, any object in the answer is a call and the text around is dropped; as a stream only an answer that
    starts with one has calls.

    Upstream: upstream/vllm/tool_parsers/llama_tool_parser.py:39 — `Llama3JsonToolParser`.
    """

    bot_token = "<|python_tag|>"

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """One brace that starts no call makes the whole answer text."""
        tool_calls, at = [], model_output.find("{")
        try:
            while at >= 0:
                call, end = json.JSONDecoder().raw_decode(model_output[at:])
                arguments = call["arguments"] if "arguments" in call else call["parameters"]
                tool_calls.append(ToolCall(function=FunctionCall(name=call["name"], arguments=dumps(arguments))))
                at = model_output.find("{", at + end + 1)  # the character behind a call is passed over
        except Exception:
            logger.exception("Error in extracting tool call from response.")
            return no_tool_calls(model_output)
        if not tool_calls:
            return no_tool_calls(model_output)
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
        """Text if the answer does not start with a call; else one part of a call a step."""
        if not current_text.startswith((self.bot_token, "{")):
            return DeltaMessage(content=delta_text)
        try:
            return self.next_delta(*self._read(current_text.removeprefix(self.bot_token)))
        except malformed_json():
            return None
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None

    def _read(self, text: str) -> tuple[list[Any], list[bool]]:
        calls, is_complete, at = [], [], 0
        while at < len(text):
            call, size = partial_json_loads(text[at:], self.allowed())
            is_complete.append(is_complete_json(text[at : at + size]))
            at += size + len("; ")
            if "parameters" in call:
                assert "arguments" not in call, "model generated both parameters and arguments"
                call["arguments"] = call["parameters"]
            calls.append(call)
        return calls, is_complete
