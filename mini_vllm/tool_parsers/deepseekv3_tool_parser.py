"""DeepSeek V3. Upstream twin: `vllm/tool_parsers/deepseekv3_tool_parser.py`.

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
from mini_vllm.entrypoints.openai.engine.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import no_tool_calls
from mini_vllm.tool_parsers.reread import CallSoFar, RereadingToolParser
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import partial_tag_overlap

logger = init_logger(__name__)


class DeepSeekV3ToolParser(RereadingToolParser):
    """Arguments are sent as the model wrote them, line breaks included. Text between the calls is dropped.

    Upstream's goes from one state to the next in each step, so that a call that comes in one step is lost, or gets the
    name of the call before; and arguments on several lines are no call there.

    Upstream: upstream/vllm/tool_parsers/deepseekv3_tool_parser.py:30 — `DeepSeekV3ToolParser`.
    """

    tool_calls_start_token, tool_calls_end_token = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    tool_call_start_token, tool_call_end_token = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    tool_call_regex = re.compile(
        r"<｜tool▁call▁begin｜>(?P<type>.*?)<｜tool▁sep｜>(?P<name>.*?)\n```json\n(?P<arguments>(?s:.*?))\n```<｜tool▁call▁end｜>"
    )
    call_so_far_regex = re.compile(r".*?<｜tool▁sep｜>(?P<name>.*)\n```json\n(?P<arguments>(?s:.*))")
    behind_arguments = "\n```"

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.require_tokens(self.tool_calls_start_token, self.tool_calls_end_token)

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

    def read(self, text: str) -> tuple[str, list[CallSoFar]]:
        """Text before and behind the calls, and the calls; what may be a call's end, and not its arguments, waits."""
        before, _, inside = text.partition(self.tool_calls_start_token)
        inside, _, behind = inside.partition(self.tool_calls_end_token)
        calls, end = [], self.behind_arguments + self.tool_call_end_token
        for body in inside.split(self.tool_call_start_token)[1:]:
            found = self.call_so_far_regex.match(body.partition(end)[0])
            if found is None:
                break  # the next call waits for this one
            arguments = found["arguments"]
            waits = 0 if end in body else partial_tag_overlap(arguments, end)
            calls.append(CallSoFar(found["name"], arguments[: len(arguments) - waits]))
        return before + behind, calls
