"""Llama 3 and 4 with JSON. Upstream twin: `vllm/tool_parsers/llama_tool_parser.py`.

<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": ...}
"""

from __future__ import annotations

import json

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import no_tool_calls
from mini_vllm.tool_parsers.json_text import JsonPrefix, members_of
from mini_vllm.tool_parsers.reread import CallSoFar, RereadingToolParser
from mini_vllm.tool_parsers.utils import dumps

logger = init_logger(__name__)


class Llama3JsonToolParser(RereadingToolParser):
    """Objects behind one another, the arguments under either of two names.

    A vocabulary without `bot_token` will do, as pocket's, which writes a bare object. Upstream's raises RuntimeError.

    Any object in the answer is a call. As a whole, the text around is dropped; a stream has sent what stands before
    them. Upstream streams calls only of an answer that starts with one.

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

    def read(self, text: str) -> tuple[str, list[CallSoFar]]:
        """Text before the first object, and the calls. An object that is no call makes all of it text, as above."""
        calls, at = list[CallSoFar](), text.find("{")
        if at < 0:
            return text.replace(self.bot_token, ""), []
        before = text[:at].replace(self.bot_token, "")
        while at >= 0:
            members, size = members_of(text[at:])
            key = "arguments" if "arguments" in members else "parameters"
            (name, is_whole), (arguments, _) = members.get("name", ("", False)), members.get(key, ("", False))
            is_call = is_whole and name.startswith('"') and (key in members or size is None)
            if not (is_call or size is None) or not JsonPrefix().grows(text[at:][:size]):
                return (text, []) if not calls else (before, calls)
            if is_call:
                calls.append(CallSoFar(json.loads(name), arguments))
            at = -1 if size is None or not is_call else text.find("{", at + size + 1)
        return before, calls
