"""Forced calls as a stream. Upstream twin: `vllm/tool_parsers/streaming.py`.

a named function:   {"city": "Paris"}                                              the arguments, and nothing else
"required":         [{"name": "get_weather", "parameters": {"city": "Paris"}}]     what the grammar allows
"""

from __future__ import annotations

import json
from collections.abc import Callable

import regex as re

from mini_vllm.entrypoints.chat_utils import make_tool_call_id
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.tool_parsers.json_calls import malformed_json
from mini_vllm.tool_parsers.json_text import after_quote
from mini_vllm.tool_parsers.utils import call_message, partial_json_loads

TextFilter = Callable[[str, str], tuple[str, bool]]
"""As `filter_delta_text`."""


def filter_delta_text(delta_text: str, previous_text: str) -> tuple[str, bool]:
    """What of a step belongs to a call's inside, and whether its last brace closes the call.

    Braces inside of texts are none; upstream counts them, so that an unpaired one shifts the end of the call:
    upstream/vllm/tool_parsers/streaming.py:38 — `filter_delta_text`.
    """
    level, inside, closes, quote = 0, "", False, ""
    for at, char in enumerate(previous_text + delta_text, -len(previous_text)):
        if not quote and char in "{}":
            level += 1 if char == "{" else -1
            closes = at >= 0 and level == 0
        quote = after_quote(quote, char)
        if at >= 0 and level != 0:
            inside += char
        elif at >= 0 and char == ",":
            break
    return inside, closes


def extract_named_tool_call_streaming(
    delta_text: str, function_name: str, function_name_returned: bool
) -> DeltaMessage:
    """The name with the first step; every step's text is arguments.

    Upstream: upstream/vllm/tool_parsers/streaming.py:62 — `extract_named_tool_call_streaming`.
    """
    if function_name_returned:
        return call_message(DeltaToolCall(function=DeltaFunctionCall(arguments=delta_text), index=0))
    return call_message(_first_part(0, function_name, delta_text))


def extract_required_tool_call_streaming(
    previous_text: str,
    current_text: str,
    delta_text: str,
    function_name_returned: bool,
    filter_text: TextFilter = filter_delta_text,
) -> tuple[DeltaMessage | None, bool]:
    """The delta, and whether the name of the call that is being written is out.

    filter_text: what of a text, and of the text before it, belongs to a call.

    Upstream: upstream/vllm/tool_parsers/streaming.py:103 — `extract_required_tool_call_streaming`.
    """
    if not current_text:
        return None, function_name_returned
    calls = _calls_so_far(current_text)
    if not calls:
        return None, False
    inside, closes = filter_text(delta_text, previous_text)
    call = calls[-1]
    if not closes and ("name" not in call or "parameters" not in call):
        return None, False
    if function_name_returned:
        part = DeltaToolCall(function=DeltaFunctionCall(name=None, arguments=inside), index=len(calls) - 1)
        return (call_message(part) if inside else None), True
    if closes and "parameters" not in call:  # the step ends a call and begins the next one
        call = calls[-2]
    found = re.search(r'.*"parameters":\s*(.*)', current_text, re.DOTALL)
    arguments = filter_text(found.group(1), current_text[: found.start(1)])[0] if found else ""
    return call_message(_first_part(len(calls) - 1, call["name"], arguments)), True


def _calls_so_far(text: str) -> list[dict] | None:
    from partial_json_parser.core.options import Allow

    try:
        calls, _ = partial_json_loads(text, Allow.ALL)
    except (malformed_json(), json.JSONDecodeError):
        return None
    return calls if isinstance(calls, list) else None


def _first_part(index: int, name: str, arguments: str) -> DeltaToolCall:
    function = DeltaFunctionCall(name=name, arguments=arguments)
    return DeltaToolCall(id=make_tool_call_id(), type="function", function=function, index=index)
