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
from mini_vllm.entrypoints.openai.engine.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import no_tool_calls
from mini_vllm.tool_parsers.json_text import members_of
from mini_vllm.tool_parsers.reread import CallSoFar, RereadingToolParser
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


class MistralToolParser(RereadingToolParser):
    """The vocabulary says which syntax it is.

    Upstream's stream goes from state to state; of several calls in one step it gives one the name of another.

    Upstream: upstream/vllm/tool_parsers/mistral_tool_parser.py:115 — `MistralToolParser`.
    """

    keeps_special_tokens = True
    bot_token = "[TOOL_CALLS]"
    tool_call_regex = re.compile(r"\[{.*}\]", re.DOTALL)

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        (self.bot_token_id,) = self.require_tokens(self.bot_token)
        self._is_pre_v11 = "[ARGS]" not in self.vocab

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

    @staticmethod
    def new_id() -> str:
        """As Mistral's templates accept it."""
        return MistralToolCall.generate_random_id()

    def read(self, text: str) -> tuple[str, list[CallSoFar]]:
        """Text before the token; in the older syntax, text behind the list too, since the list says where it ends."""
        content, *raw = text.split(self.bot_token)
        if not raw:
            return content, []
        if not self._is_pre_v11:
            named = [(part[: part.find("{")], part) for part in raw if "{" in part]
            return content, [CallSoFar(name.replace("[ARGS]", ""), part[len(name) :]) for name, part in named]
        calls, behind = _calls_of_list("".join(raw))
        return content + behind, calls


def _calls_of_list(text: str) -> tuple[list[CallSoFar], str]:
    """The calls of a JSON list of objects that may be cut, up to one without a whole name; and what stands behind."""
    found, calls = re.search(r"\[\s*(?={)", text), list[CallSoFar]()
    at = found.end() if found else None
    while at is not None:
        members, size = members_of(text[at:])
        name, is_whole = members.get("name", ("", False))
        if not is_whole or not name.startswith('"'):
            break
        arguments, _ = members.get("arguments", ("{}" if size else "", True))
        calls.append(CallSoFar(json.loads(name), arguments))
        if size is None:
            break
        rest = text[at + size :]
        comma = re.match(r"\s*,\s*(?={)", rest)
        if not comma:
            return calls, rest.lstrip()[1:] if rest.lstrip().startswith("]") else ""
        at += size + comma.end()
    return calls, ""


def _named_call(text: str) -> FunctionCall:
    name = text[: text.find("{")]
    return FunctionCall(name=name.replace("[ARGS]", ""), arguments=text[len(name) :])


def _json_call(call: dict[str, Any]) -> FunctionCall:
    return FunctionCall(name=call["name"], arguments=dumps(call.get("arguments", {})))
