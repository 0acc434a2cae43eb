"""Qwen 3 Coder. Upstream twin: `vllm/tool_parsers/qwen3coder_tool_parser.py`.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import regex as re

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import no_tool_calls
from mini_vllm.tool_parsers.reread import CallSoFar, RereadingToolParser
from mini_vllm.tool_parsers.tool_schema import (
    Tool,
    coerce_to_schema_type,
    extract_types_from_schema,
    find_tool_properties,
)
from mini_vllm.tool_parsers.utils import dumps, partial_tag_overlap

logger = init_logger(__name__)
CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3CoderToolParser(RereadingToolParser):
    """Values are bare text: the tool's schema says what they are. A parameter is sent once it has ended.

    Upstream's stream sends one thing a step, and loses the text of a step that passes to the next call.

    Upstream: upstream/vllm/tool_parsers/qwen3coder_tool_parser.py:41 — `Qwen3CoderToolParser`.
    """

    none_is_null = True
    """Templates write a null of an earlier call so, and models repeat it. Upstream makes a text of it."""
    tool_call_regex = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*?)$", re.DOTALL)
    function_regex = re.compile(r"<function=(.*?)</function>|<function=(.*)$", re.DOTALL)
    parameter_regex = re.compile(r"<parameter=(.*?)(?:</parameter>|(?=<parameter=)|(?=</function>)|$)", re.DOTALL)

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.tool_call_start_token_id, self.tool_call_end_token_id = self.require_tokens(CALL, CALL_END)

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """A function needs no <tool_call> around it. One parameter without a name makes the whole answer text."""
        if FUNCTION not in model_output:
            return no_tool_calls(model_output)
        try:
            found = [self._parse_function(text) for text in self._functions(model_output)]
        except Exception:
            logger.exception("Error in extracting tool call from response.")
            return no_tool_calls(model_output)
        calls = [call for call in found if call is not None]
        self.prev_tool_call_arr[:] = [{"name": call.name, "arguments": call.arguments} for call in calls]
        content, _, _ = model_output.partition(CALL if CALL in model_output else FUNCTION)
        tool_calls = [ToolCall(function=call) for call in calls]
        return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=tool_calls, content=content or None)

    def _functions(self, text: str) -> list[str]:
        bodies = [whole or cut for whole, cut in self.tool_call_regex.findall(text)] or [text]
        return [whole or cut for body in bodies for whole, cut in self.function_regex.findall(body)]

    def _parse_function(self, text: str) -> FunctionCall | None:
        """`get_weather>…`: None without the ">". Raises ValueError for a parameter without one."""
        name, mark, body = text.partition(">")
        if not mark:
            return None
        arguments = {}
        for parameter in self.parameter_regex.findall(body):
            key = parameter[: parameter.index(">")]
            arguments[key] = self._value(name, key, parameter[len(key) + 1 :].removeprefix("\n"))
        return FunctionCall(name=name, arguments=dumps(arguments))

    def _value(self, function: str, key: str, text: str) -> Any:
        schema = find_tool_properties(self.tools, function).get(key, {})
        return coerce_to_schema_type(text.removesuffix("\n"), extract_types_from_schema(schema), self.none_is_null)

    def read(self, text: str) -> tuple[str, list[CallSoFar]]:
        """Text outside of calls, but for line breaks between them; and of each call the parameters that have ended."""
        start = text.find(CALL) if CALL in text else text.find(FUNCTION)
        if start < 0:
            waits = max(partial_tag_overlap(text, tag) for tag in (CALL, FUNCTION))
            return text[: len(text) - waits], []
        content, inside = text[:start], text[start:]
        for behind in inside.split(CALL_END)[1:]:
            between, tag, _ = behind.partition(CALL)
            between = between if tag else between[: len(between) - partial_tag_overlap(between, CALL)]
            content += between if between.strip() else ""
        calls = []
        for body, is_whole in self._bodies(inside):
            name, mark, parameters = body.partition(">")
            if not mark:
                break
            calls.append(CallSoFar(name, self._arguments(body, name, parameters, is_whole)))
        return content, calls

    def _bodies(self, text: str) -> list[tuple[str, bool]]:
        """Of each function, what stands behind its tag's "=", and whether it has ended."""
        bodies = [(whole or cut, bool(whole)) for whole, cut in self.tool_call_regex.findall(text)] or [(text, False)]
        return [
            (whole or cut, bool(whole) or has_ended)
            for body, has_ended in bodies
            for whole, cut in self.function_regex.findall(body)
        ]

    def _arguments(self, body: str, name: str, parameters: str, is_whole: bool) -> str:
        if is_whole:
            with contextlib.suppress(ValueError):
                return (self._parse_function(body) or FunctionCall(name=name, arguments="{}")).arguments
        arguments = {}
        for found in re.finditer(PARAMETER, parameters):
            key, mark, value = parameters[found.end() :].partition(">")
            value = value.removeprefix("\n")
            end = end_of_value(value)
            if not mark or end is None:
                break
            arguments[key] = self._value(name, key, value[:end])
        return dumps(arguments)[:-1]


def end_of_value(value: str) -> int | None:
    """Where a parameter ends: at its tag, else at what can only come behind it; None: it goes on."""
    end = value.find(PARAMETER_END)
    if end >= 0:
        return end
    behind = [at for at in (value.find(PARAMETER), value.find(FUNCTION_END)) if at >= 0]
    if behind:
        return min(behind)
    end = value.find(CALL_END)
    return end if end >= 0 else None
