"""Texts that end too early: tags, JSON, and what of them may be sent. Upstream twin: `vllm/tool_parsers/utils.py`."""

from __future__ import annotations

import json
from typing import Any

from mini_vllm.entrypoints.chat_utils import make_tool_call_id
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall


def partial_tag_overlap(text: str, tag: str) -> int:
    """Characters at the end of `text` that may become `tag`: "…<tool_" gives 6 for "<tool_call>".

    Upstream: upstream/vllm/tool_parsers/utils.py:34 — `partial_tag_overlap`.
    """
    longest = min(len(tag) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)


def find_common_prefix(first: str, second: str) -> str:
    """The part that both texts start with (upstream/vllm/tool_parsers/utils.py:47 — `find_common_prefix`)."""
    pairs = zip(first, second, strict=False)
    size = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
    return first[:size]


def partial_json_loads(text: str, flags: Any) -> tuple[Any, int]:
    """The first JSON value of a text that may be cut, and how many characters it takes.

    Args:
        flags: what may be incomplete, of `partial_json_parser.Allow`; what may not is left out.

    Raises what the library raises: MalformedJSON, JSONDecodeError, IndexError for brackets that close nothing.
    Upstream: upstream/vllm/tool_parsers/utils.py:123 — `partial_json_loads`.
    """
    import partial_json_parser

    try:
        return partial_json_parser.loads(text, flags), len(text)
    except json.JSONDecodeError as error:
        if "Extra data" not in error.msg:
            raise
        return json.JSONDecoder().raw_decode(text)


def is_complete_json(text: str) -> bool:
    """True where nothing is missing (upstream/vllm/tool_parsers/utils.py:133 — `is_complete_json`)."""
    try:
        json.loads(text)
        return True
    except json.JSONDecodeError:
        return False


def dumps(value: Any) -> str:
    """JSON as it is sent: characters as they are, not as escapes."""
    return json.dumps(value, ensure_ascii=False)


def name_delta(index: int, name: str) -> DeltaToolCall:
    """The first part of a call: its id and its name."""
    function = DeltaFunctionCall(name=name)
    return DeltaToolCall(index=index, type="function", id=make_tool_call_id(), function=function)


def arguments_delta(index: int, arguments: str) -> DeltaToolCall:
    """A further part of a call."""
    return DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=arguments))


def call_message(*calls: DeltaToolCall) -> DeltaMessage:
    """A delta of parts of calls, without text."""
    return DeltaMessage(tool_calls=list(calls))
