"""Conversations in the form of OpenAI's API -> what a chat template reads.

A message's content may be a text or a list of parts. Most templates take a text, so parts are joined by line breaks;
some loop over the parts themselves, and get them as dicts. Which of the two is read from the template.
Upstream: `vllm/entrypoints/chat_utils.py` and `vllm/renderers/hf.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mini_vllm.entrypoints.chat_media import MEDIA_PARTS, OTHER_PARTS, MultiModalItemTracker, full_text_prompt
from mini_vllm.entrypoints.chat_template import ChatTemplateError, compiled
from mini_vllm.utils.checks import shown

CONTENT_FORMATS = ("auto", "string", "openai")
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Kind of part -> the key of its text."""


def parse_chat_messages(
    messages: Any, content_format: str, tracker: MultiModalItemTracker | None = None
) -> list[dict[str, Any]]:
    """Messages with their contents as texts ("string") or as lists of `{"type": "text", "text": …}` ("openai").

    The caller's messages are left as they are. Arguments of tool calls, which are JSON in OpenAI's form, become dicts.
    tracker: takes pictures, which leave `{"type": "image"}`, or a marker in the text; None: there may be none.
    Raises ChatTemplateError naming the message and what is wrong with it.
    Upstream: upstream/vllm/entrypoints/chat_utils.py:1845 — `parse_chat_messages`.
    """
    check_messages(messages)
    tracker = tracker or MultiModalItemTracker(None)
    as_parts = content_format == "openai"
    return [_parse(message, f"messages[{at}]", as_parts, tracker) for at, message in enumerate(messages)]


def check_messages(messages: Any) -> None:
    """Raises ChatTemplateError where this is no list of messages."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        said = shown(messages)
        raise ChatTemplateError(f"messages must be a list of at least one {{'role', 'content'}}, got {said}.")
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            said = shown(message)
            raise ChatTemplateError(f"messages[{at}] must be a dict with 'role' and 'content', got {said}.")


def _parse(message: Mapping[str, Any], where: str, as_parts: bool, tracker: MultiModalItemTracker) -> dict[str, Any]:
    content = message.get("content")
    if content is not None and not isinstance(content, str) and not _is_list(content):
        raise ChatTemplateError(f"{where}: content must be a text or a list of parts, got {shown(content)}.")
    given = [] if content is None else [content] if isinstance(content, str) else content
    parts, texts, markers = _take_parts(given, where, tracker)
    wrapped = as_parts and message["role"] != "tool"
    parsed = {**message, "content": parts if wrapped else full_text_prompt(texts, markers, where)}
    if parsed.get("tool_calls") is not None or "tool_calls" in parsed:
        calls = parsed.pop("tool_calls")
        if calls:
            parsed["tool_calls"] = _tool_calls(calls, where)
    return parsed


def _take_parts(
    given: Sequence[Any], where: str, tracker: MultiModalItemTracker
) -> tuple[list[dict[str, str]], list[str], list[str]]:
    """The parts of a message for a template that takes parts; for one that takes texts these, and the markers of items.

    Upstream: upstream/vllm/entrypoints/chat_utils.py:1610 — `_parse_chat_message_content_part`.
    """
    parts: list[dict[str, str]] = []
    texts: list[str] = []
    markers: list[str] = []
    for at, part in enumerate(given):
        name = f"{where}: content[{at}]"
        kind = _kind_of(part, name)
        if kind not in MEDIA_PARTS:
            if (text := _text_of(part, kind, name)) is not None:
                parts.append({"type": "text", "text": text})
                texts.append(text)
        elif (taken := tracker.add(kind, part, name)) is not None:
            modality, marker = taken
            parts.append({"type": modality})
            markers.append(marker)
            texts += [marker] * tracker.interleave_strings
    return parts, texts, markers


def _kind_of(part: Any, where: str) -> str:
    """Its type; a part without one is of the kind that its key names."""
    if isinstance(part, str):
        return "text"
    if not isinstance(part, Mapping):
        raise ChatTemplateError(f"{where} must be a text or a dict with 'type', got {shown(part)}.")
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in ("text", *MEDIA_PARTS, *OTHER_PARTS) if name in part), None)
    known = *_TEXT_PARTS, *MEDIA_PARTS
    if not isinstance(kind, str) or kind not in known:
        raise ChatTemplateError(f"{where}: type must be one of {', '.join(known)}, got {shown(kind)}.")
    return kind


def _text_of(part: Any, kind: str, where: str) -> str | None:
    """The text of a part; None for one that has none, which is left out."""
    if isinstance(part, str):
        return part
    text = part.get(_TEXT_PARTS[kind])
    if text is not None and not isinstance(text, str):
        raise ChatTemplateError(f"{where}: {_TEXT_PARTS[kind]} must be a text, got {shown(text)}.")
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Upstream: upstream/vllm/entrypoints/chat_utils.py:1803 — `_postprocess_messages`."""
    if not _is_list(calls) or not all(isinstance(c, Mapping) and isinstance(c.get("function"), Mapping) for c in calls):
        raise ChatTemplateError(f"{where}: tool_calls must be a list of dicts with a 'function', got {shown(calls)}.")
    parsed = []
    for call in calls:
        arguments = call["function"].get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                raise ChatTemplateError(f"{where}: arguments of a tool call are not valid JSON ({error}).") from None
        parsed.append({**call, "function": {**call["function"], "arguments": arguments}})
    return parsed


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


@lru_cache(maxsize=32)
def detect_content_format(template: str) -> str:
    """ "openai" where the template loops over a message's content, else "string".

    Simplified: a loop over `….content`, `…['content']` or a variable of that name is enough. Upstream follows the
    variables: upstream/vllm/renderers/hf.py:433 — `_detect_content_format`.
    """
    import jinja2
    from jinja2 import nodes

    try:
        tree = compiled(template).environment.parse(template)
    except (jinja2.TemplateError, RecursionError):
        return "string"  # rendering it will say what is wrong
    return "openai" if any(_is_content(loop.iter) for loop in tree.find_all(nodes.For)) else "string"


def _is_content(node: Any) -> bool:
    from jinja2 import nodes

    while isinstance(node, nodes.Filter | nodes.Test) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getitem):
        is_slice = isinstance(node.arg, nodes.Slice)
        return _is_content(node.node) if is_slice else isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name == "content"
