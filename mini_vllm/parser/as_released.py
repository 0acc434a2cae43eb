"""Parsers that do what those of vLLM 0.22.1 do, also where they break a client: `--parsers-as-released`.

Each class here stands beside a mended one, and takes back what was mended, and nothing else. docs/parsers.md lists it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial
from typing import Any
from xml.sax.saxutils import escape

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage, ToolCall
from mini_vllm.parser.abstract_parser import DelegatingParser
from mini_vllm.parser.deepseek_as_released import DeepSeekV3AsReleased, DeepSeekV31AsReleased
from mini_vllm.parser.granite_as_released import GraniteReasoningAsReleased
from mini_vllm.parser.llama_as_released import Llama3JsonAsReleased
from mini_vllm.parser.mistral_as_released import MistralAsReleased
from mini_vllm.parser.qwen3coder_as_released import Qwen3CoderAsReleased
from mini_vllm.reasoning import ReasoningParser
from mini_vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from mini_vllm.reasoning.deepseek_v3_reasoning_parser import DeepSeekV3ReasoningParser
from mini_vllm.reasoning.granite_reasoning_parser import GraniteReasoningParser
from mini_vllm.tool_parsers import ToolParser
from mini_vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser
from mini_vllm.tool_parsers.deepseekv31_tool_parser import DeepSeekV31ToolParser
from mini_vllm.tool_parsers.granite_tool_parser import GraniteToolParser
from mini_vllm.tool_parsers.internlm2_tool_parser import Internlm2ToolParser
from mini_vllm.tool_parsers.jamba_tool_parser import JambaToolParser
from mini_vllm.tool_parsers.json_calls import PartialJsonToolParser
from mini_vllm.tool_parsers.llama_tool_parser import Llama3JsonToolParser
from mini_vllm.tool_parsers.mistral_tool_parser import MistralToolParser
from mini_vllm.tool_parsers.pythonic_calls import UnexpectedAstError, make_valid_python, parse_calls
from mini_vllm.tool_parsers.pythonic_tool_parser import PythonicToolParser
from mini_vllm.tool_parsers.qwen3coder_tool_parser import Qwen3CoderToolParser
from mini_vllm.tool_parsers.qwen3xml_tool_parser import Qwen3XMLToolParser, StreamingXMLToolCallParser
from mini_vllm.tool_parsers.streaming import TextFilter
from mini_vllm.tool_parsers.tool_schema import Tool, get_json_schema_from_tools
from mini_vllm.tool_parsers.utils import dumps, find_common_prefix
from mini_vllm.tool_parsers.xml_call_events import convert_param_value, known_type, read_python


def find_common_suffix(first: str, second: str) -> str:
    """The part that both texts end with, up to a letter or digit: only what closes a JSON text.

    Upstream: upstream/vllm/tool_parsers/utils.py:70 — `find_common_suffix`.
    """
    size = 0
    while size < min(len(first), len(second)):
        char = first[-size - 1]
        if char != second[-size - 1] or char.isalnum():
            break
        size += 1
    return first[len(first) - size :]


def extract_intermediate_diff(current: str, old: str) -> str:
    """What `current` has between the start and the end that it shares with `old`: the JSON that grew in the middle.

    Upstream: upstream/vllm/tool_parsers/utils.py:88 — `extract_intermediate_diff`.
    """
    suffix = find_common_suffix(current, old)
    kept = current[: len(current) - len(suffix)]
    return kept.replace(find_common_prefix(current, old[: len(old) - len(suffix)]), "", 1)


def _grown_arguments(parser: PartialJsonToolParser, before: Any, after: Any, delta_text: str) -> DeltaMessage | None:
    """Up to this step's text at first, then what grew in the middle.

    Raises ValueError where this step's text is not in the arguments.
    Upstream, in both parsers: upstream/vllm/tool_parsers/jamba_tool_parser.py:254 — "cur_arguments".
    """
    if not after:
        return None
    if before:
        return parser.send_arguments(extract_intermediate_diff(dumps(after), dumps(before)))
    arguments = dumps(after)
    return parser.send_arguments(arguments[: arguments.index(delta_text) + len(delta_text)])


class Internlm2AsReleased(Internlm2ToolParser):
    """Sends pieces of arguments that are no JSON."""

    def grown_arguments(self, before: Any, after: Any, delta_text: str) -> DeltaMessage | None:
        """See `_grown_arguments`."""
        return _grown_arguments(self, before, after, delta_text)


class JambaAsReleased(JambaToolParser):
    """Sends pieces of arguments that are no JSON."""

    def grown_arguments(self, before: Any, after: Any, delta_text: str) -> DeltaMessage | None:
        """See `_grown_arguments`; an apostrophe may be JSON's quote."""
        return _grown_arguments(self, before, after, delta_text.replace("'", '"'))

    def _rest_of(self, call: Any) -> DeltaMessage | None:
        if self.current_tool_id < 0 or not call.get("arguments"):
            return None
        return self.send_arguments(
            dumps(call["arguments"]).replace(self.streamed_args_for_tool[self.current_tool_id], "")
        )


class GraniteAsReleased(GraniteToolParser):
    """Sends the token or tag before a list as text."""

    def _may_begin_calls(self, text: str) -> bool:
        return False


def _parse_calls_without_signs(text: str) -> list[ToolCall]:
    """As `parse_calls`; a number with a sign is an error (UnexpectedAstError).

    Upstream: upstream/vllm/tool_parsers/utils.py:276 — `get_parameter_value`.
    """
    for call in getattr(getattr(ast.parse(text).body[0], "value", None), "elts", ()):
        values = [keyword.value for keyword in getattr(call, "keywords", ())]
        if any(isinstance(node, ast.UnaryOp) for value in values for node in ast.walk(value)):
            raise UnexpectedAstError("Tool call arguments must be literals")
    return parse_calls(text)


def _marks_of_strings_too(text: str) -> list[str]:
    """As `open_marks`, brackets inside of strings among them.

    Upstream: upstream/vllm/tool_parsers/utils.py:360 — `make_valid_python`.
    """
    stack: list[str] = []
    closes = {")": "(", "]": "[", "}": "{"}
    for at, char in enumerate(text):
        if char in "[({":
            stack.append(char)
        elif char in closes and (not stack or stack.pop() != closes[char]):
            raise UnexpectedAstError(f"Mismatched {char}")
        elif char in "'\"":
            if not stack or stack[-1] not in "'\"":
                stack.append(char)
            elif stack[-1] == char and text[at - 1] != "\\":
                stack.pop()
    return stack


class PythonicAsReleased(PythonicToolParser):
    """Takes no number with a sign, and no call of an answer with one; sends numbers and escapes that are cut."""

    parse_calls = staticmethod(_parse_calls_without_signs)
    make_valid_python = staticmethod(partial(make_valid_python, marks=_marks_of_strings_too, waits=lambda *cut: False))


class _XmlCallsAsReleased(StreamingXMLToolCallParser):
    read_whole = staticmethod(read_python)

    @staticmethod
    def safe(text: str) -> str:
        return escape(text, {'"': "&quot;", "'": "&apos;"})

    @staticmethod
    def stated_type(schema: dict[str, Any]) -> str:
        return known_type(str(schema.get("type", "string")))

    def of_last_call(self, chunk: str) -> str:
        return chunk

    def behind_first_break(self, data: str) -> str:
        return data if self.param_value else data.removeprefix("\n")

    def _emit_value(self, name: str, whole: bool = False) -> None:
        if whole:  # all of it has been sent
            return
        value = convert_param_value(self.param_value, name)
        new, self.param_sent = value[len(self.param_sent) :], value
        self.emit(new)


class Qwen3XMLAsReleased(Qwen3XMLToolParser):
    """Sends false for a "true" that comes in pieces, the beginning of a "null" as a text, and a null as nothing."""

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.parser = _XmlCallsAsReleased()


_BESIDE: dict[type[ToolParser], type[ToolParser]] = {
    DeepSeekV31ToolParser: DeepSeekV31AsReleased,
    DeepSeekV3ToolParser: DeepSeekV3AsReleased,
    GraniteToolParser: GraniteAsReleased,
    Internlm2ToolParser: Internlm2AsReleased,
    JambaToolParser: JambaAsReleased,
    Llama3JsonToolParser: Llama3JsonAsReleased,
    MistralToolParser: MistralAsReleased,
    PythonicToolParser: PythonicAsReleased,
    Qwen3CoderToolParser: Qwen3CoderAsReleased,
    Qwen3XMLToolParser: Qwen3XMLAsReleased,
}
"""Mended parser to the release's; all others are the same but for `_forced_schema`."""


def _forced_schema(self: ToolParser, request: ChatCompletionRequest) -> dict[str, Any] | None:
    """A named function without parameters forces nothing."""
    return get_json_schema_from_tools(request.tool_choice, request.tools)


def tool_parser_as_released(parser: type[ToolParser]) -> type[ToolParser]:
    """The class that does what the release's does; one of a plugin but for what all parsers share."""
    return type(parser.__name__, (_BESIDE.get(parser, parser),), {"forced_schema": _forced_schema})


def _ended_before(self: ReasoningParser, prompt_token_ids: Sequence[int]) -> bool:
    """Where the prompt says so in tokens."""
    return self.is_reasoning_end(prompt_token_ids)


def _extract_reasoning_behind(
    self: ReasoningParser, prompt_token_ids: Sequence[int] | None, model_output: str, request: ChatCompletionRequest
) -> tuple[str | None, str | None]:
    """Whatever the prompt says."""
    return self.extract_reasoning(model_output, request=request)


def _with_first_token(self: ReasoningParser, delta_text: str) -> str:
    """As it came."""
    return delta_text


def reasoning_parser_as_released(parser: type[ReasoningParser]) -> type[ReasoningParser]:
    """The class that ends thoughts where the release's does."""
    ways: dict[str, Any] = {"ended_before": _ended_before, "extract_reasoning_behind": _extract_reasoning_behind}
    if issubclass(parser, BaseThinkingReasoningParser):
        ways["text_of_first_step"] = _with_first_token
    if issubclass(parser, DeepSeekV3ReasoningParser):
        ways["thinking_parser"] = reasoning_parser_as_released(parser.thinking_parser)
    beside = GraniteReasoningAsReleased if parser is GraniteReasoningParser else parser
    return type(parser.__name__, (beside,), ways)


def count_braces(before_step: str, text: str, before: str) -> tuple[str, bool]:
    """What of `text` belongs to a call's inside, and whether its last brace closes the call.

    Braces are counted, those inside of texts too, behind those of `before_step`, whatever stands `before` this text: an
    unpaired one in an argument shifts the end of the call.

    Upstream: upstream/vllm/tool_parsers/streaming.py:38 — `filter_delta_text`.
    """
    level, inside, closes = before_step.count("{") - before_step.count("}"), "", False
    for char in text:
        if char in "{}":
            level += 1 if char == "{" else -1
            closes = level == 0
        if level != 0:
            inside += char
        elif char == ",":
            break
    return inside, closes


class DelegatingParserAsReleased(DelegatingParser):
    """Counts all braces of a forced call, and gives a parser ids whose text has not come."""

    def step_of(self, text: str, token_ids: list[int], request: ChatCompletionRequest) -> tuple[str, list[int]]:
        """As it came."""
        return text, token_ids

    def text_filter(self, previous_text: str) -> TextFilter:
        """See `count_braces`."""
        return partial(count_braces, previous_text)
