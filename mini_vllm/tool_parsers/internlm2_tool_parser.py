"""InternLM 2. Upstream twin: `vllm/tool_parsers/internlm2_tool_parser.py`.

<|action_start|><|plugin|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>
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
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import call_message, dumps, name_delta

logger = init_logger(__name__)
START, PLUGIN, END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


def _arguments(call: dict[str, Any]) -> Any:
    return call["parameters"] if "parameters" in call else call.get("arguments")


class Internlm2ToolParser(PartialJsonToolParser):
    """One call an answer. In a whole answer a second one, or a broken one, is an error of this parser's.

    Upstream: upstream/vllm/tool_parsers/internlm2_tool_parser.py:34 — `Internlm2ToolParser`.
    """

    keeps_special_tokens = True

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.position = 0
        """How much of the text is sent."""

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """Raises ValueError for two calls and for what is not JSON, KeyError for a call without a name."""
        if START + PLUGIN not in model_output:
            return no_tool_calls(model_output)
        content, action = model_output.split(START + PLUGIN)
        action = action.split(END)[0]
        call = json.loads(action[action.find("{") :])
        arguments = call.get("parameters", call.get("arguments", {}))
        tool_call = ToolCall(function=FunctionCall(name=call["name"], arguments=dumps(arguments)))
        return ExtractedToolCallInformation(tools_called=True, tool_calls=[tool_call], content=content or None)

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
        """Text before the call, then its parts. Raises ValueError for a second call."""
        if START not in current_text:
            self.position = len(current_text)
            return DeltaMessage(content=delta_text)
        if self.current_tool_id > 0:
            return DeltaMessage(content="")
        if START + PLUGIN not in current_text[self.position :]:
            return None
        content, action = current_text[self.position :].split(START + PLUGIN)
        if content:
            self.position += len(content)
            return DeltaMessage(content=content)
        import partial_json_parser

        try:
            call = partial_json_parser.loads(action.strip().split(END)[0], self.allowed())
            return self._next(call, delta_text)
        except malformed_json():
            return None
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None

    def _next(self, call: dict[str, Any], delta_text: str) -> DeltaMessage | None:
        delta = None
        if self.current_tool_name_sent:
            before = _arguments(self.prev_tool_call_arr[self.current_tool_id])
            delta = self.grown_arguments(before, _arguments(call), delta_text)
        elif call.get("name"):
            self.current_tool_id += 1
            delta = call_message(name_delta(self.current_tool_id, call["name"]))
            self.current_tool_name_sent = True
            self.streamed_args_for_tool.append("")
        call["arguments"] = _arguments(call)
        self.prev_tool_call_arr = [call]
        return delta
