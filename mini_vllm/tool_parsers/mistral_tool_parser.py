"""Mistral, two syntaxes. Upstream twin: `vllm/tool_parsers/mistral_tool_parser.py`.

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]     a vocabulary without [ARGS]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]...             one with it: tokenizers from 11 on

Left out: mistral_common's tokenizers, and the grammars that upstream takes from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import choices
from string import ascii_letters, digits
from typing import Any

import regex as re
from pydantic import Field

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser, no_tool_calls
from mini_vllm.tool_parsers.mistral_json_stream import MistralJsonStream, StreamingState
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import dumps

logger = init_logger(__name__)


class MistralToolCall(ToolCall):
    """A call whose id Mistral's templates accept: nine letters and digits."""

    id: str = Field(default_factory=lambda: MistralToolCall.generate_random_id())

    @staticmethod
    def generate_random_id() -> str:
        """A fresh id."""
        return "".join(choices(ascii_letters + digits, k=9))


class MistralToolParser(ToolParser):
    """The vocabulary says which syntax it is.

    Upstream: upstream/vllm/tool_parsers/mistral_tool_parser.py:115 — `MistralToolParser`.
    """

    keeps_special_tokens = True
    bot_token = "[TOOL_CALLS]"
    tool_call_regex = re.compile(r"\[{.*}\]", re.DOTALL)

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        (self.bot_token_id,) = self.require_tokens(self.bot_token)
        self._is_pre_v11 = "[ARGS]" not in self.vocab
        self.streaming_state = StreamingState.WAITING_FOR_TOOL_START
        self.current_tool_name: str | None = None
        if self._is_pre_v11:
            self._json_stream = MistralJsonStream(self, MistralToolCall.generate_random_id)

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """Calls behind the token. In the newer syntax arguments may be broken JSON: the model shall see its mistake.

        Raises ValueError for a second token in the older syntax, KeyError for a call without a name.
        """
        content, *raw = model_output.split(self.bot_token)
        if not raw:
            return no_tool_calls(model_output)
        if not self._is_pre_v11:
            calls = [_named_call(text) for text in raw if "{" in text]
        elif len(raw) > 1:
            raise ValueError(f"Only one BOT token should have been outputted, but got {model_output}.")
        else:
            try:
                calls = [_json_call(call) for call in self._read_list(raw[0].strip())]
            except (IndexError, json.JSONDecodeError):
                logger.exception("Error in extracting tool call from response.")
                return no_tool_calls(raw[0].strip())
        tool_calls: list[ToolCall] = [MistralToolCall(function=call) for call in calls]
        return ExtractedToolCallInformation(tools_called=True, tool_calls=tool_calls, content=content or None)

    def _read_list(self, text: str) -> Any:
        """The list at the start, whatever stands behind it; else whatever looks like a list of objects."""
        try:
            return json.JSONDecoder().raw_decode(text)[0]
        except json.JSONDecodeError:
            return json.loads(self.tool_call_regex.findall(text)[0])

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
        """Text until the token has come, then parts of calls; an empty delta where a call goes on without news."""
        if self.bot_token_id not in current_token_ids and self.bot_token not in current_text:
            return DeltaMessage(content=delta_text)
        try:
            if self._is_pre_v11:
                has_token = self.bot_token_id in delta_token_ids or self.bot_token in delta_text
                return self._json_stream.feed(delta_text, has_token)
            return self._feed(delta_text)
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None

    def _feed(self, delta_text: str) -> DeltaMessage | None:
        content = ""
        if self.streaming_state is StreamingState.WAITING_FOR_TOOL_START:
            if self.bot_token not in delta_text:
                return DeltaMessage(content=delta_text)
            if not delta_text.startswith(self.bot_token):  # text and a call in one step: a second call runs into it
                content, *rest = delta_text.split(self.bot_token)
                delta_text = self.bot_token + "".join(rest)
        calls = self._named_deltas(delta_text)
        fields: dict[str, Any] = ({"content": content} if content else {}) | ({"tool_calls": calls} if calls else {})
        parsing = (StreamingState.PARSING_ARGUMENTS, StreamingState.TOOL_COMPLETE)
        return DeltaMessage(**fields) if fields or self.streaming_state in parsing else None

    def _named_deltas(self, text: str) -> list[DeltaToolCall]:
        """Of `…name[ARGS]{…}[TOOL_CALLS]name[ARGS]{…`, which starts and ends anywhere."""
        if not text:
            return []
        in_call = self.streaming_state in (StreamingState.PARSING_NAME, StreamingState.PARSING_ARGUMENTS)
        if not in_call and text.startswith(self.bot_token):
            self.start_call()
            self.streaming_state = StreamingState.PARSING_NAME
            text = text.removeprefix(self.bot_token)
        tool_id = None
        if self.streaming_state is StreamingState.PARSING_NAME:
            name, brace, _ = text.partition("{")
            self.current_tool_name = (self.current_tool_name or "") + name
            if not brace:
                return []
            tool_id = MistralToolCall.generate_random_id()
            self.current_tool_name = self.current_tool_name.replace("[ARGS]", "")
            self.prev_tool_call_arr[self.current_tool_id]["name"] = self.current_tool_name
            text = text[len(name) :]
            self.streaming_state = StreamingState.PARSING_ARGUMENTS
        if self.streaming_state is not StreamingState.PARSING_ARGUMENTS:
            return []
        return self._arguments_deltas(text, tool_id)

    def _arguments_deltas(self, text: str, tool_id: str | None) -> list[DeltaToolCall]:
        arguments, token, _ = text.partition(self.bot_token)
        if token:
            self.streaming_state = StreamingState.TOOL_COMPLETE
        self.add_arguments(arguments)
        deltas = []
        if self.current_tool_name or arguments:
            name = {} if self.current_tool_name is None else {"name": self.current_tool_name}
            function = DeltaFunctionCall(**name, arguments=arguments)
            deltas.append(DeltaToolCall(index=self.current_tool_id, type="function", id=tool_id, function=function))
            self.current_tool_name = None
        return deltas + self._named_deltas(text[len(arguments) :] if token else "")

    def start_call(self) -> None:
        """A call begins."""
        self.current_tool_id += 1
        self.streamed_args_for_tool.append("")
        self.prev_tool_call_arr.append({})

    def add_arguments(self, arguments: str) -> None:
        """Remember arguments that are sent now."""
        self.streamed_args_for_tool[self.current_tool_id] += arguments
        call = self.prev_tool_call_arr[self.current_tool_id]
        call["arguments"] = self.streamed_args_for_tool[self.current_tool_id]


def _named_call(text: str) -> FunctionCall:
    name = text[: text.find("{")]
    return FunctionCall(name=name.replace("[ARGS]", ""), arguments=text[len(name) :])


def _json_call(call: dict[str, Any]) -> FunctionCall:
    return FunctionCall(name=call["name"], arguments=dumps(call.get("arguments", {})))
