"""From the text of an answer to a message: thinking apart, tool calls apart, and why it ended.

Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:1006 — `chat_completion_full_generator`, and
upstream/vllm/entrypoints/openai/engine/serving.py:455 — `_parse_tool_calls_from_content`.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mini_vllm.entrypoints.chat_utils import make_tool_call_id
from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
    ChatMessage,
)
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import FunctionCall, FunctionDefinition, ToolCall

_CALLS: TypeAdapter[list[FunctionDefinition]] = TypeAdapter(list[FunctionDefinition])


def make_message(
    request: ChatCompletionRequest, parsers: Parsers, role: str, text: str, prompt_token_ids: list[int] | None = None
) -> tuple[ChatMessage, bool]:
    """The message of a complete answer, and whether it ended in tool calls of the model's own choice."""
    content: str | None = text
    reasoning: str | None = None
    parser = parsers.reasoning_of(request)
    if parser is not None:
        reasoning, content = parser.extract_reasoning_behind(prompt_token_ids, text, request)
        reasoning = reasoning if request.include_reasoning else None
    calls, content = parse_tool_calls(request, parsers, content)
    forced = isinstance(request.tool_choice, ChatCompletionNamedToolChoiceParam) or request.tool_choice == "required"
    if not calls and not forced:
        return ChatMessage(role=role, reasoning=reasoning, content=content), False
    items = [ToolCall(id=call.id or make_tool_call_id(), function=call) for call in calls or ()]
    if not request.parallel_tool_calls:
        items = items[:1]
    message = ChatMessage(role=role, reasoning=reasoning, content="" if forced else content, tool_calls=items)
    return message, bool(calls) and not forced


def parse_tool_calls(
    request: ChatCompletionRequest, parsers: Parsers, content: str | None
) -> tuple[list[FunctionCall] | None, str | None]:
    """The calls in a text, and the text without them; None where there are none to look for."""
    choice, parser = request.tool_choice, parsers.tool_parser
    plain = parser is None or parser.supports_required_and_named
    if isinstance(choice, ChatCompletionNamedToolChoiceParam) and plain:
        return ([] if content is None else [FunctionCall(name=choice.function.name, arguments=content)]), None
    if choice == "required" and plain:
        found: list[FunctionDefinition] = []
        with contextlib.suppress(ValidationError):
            found = _CALLS.validate_json(content or "")
        return [_as_call(each) for each in found], None
    if parser is None or choice == "none" or (choice in (None, "auto") and not request.tools and choice is not None):
        return None, content
    info = parser(parsers.tokenizer, request.tools).extract_tool_calls(content or "", request=request)
    if info is None or not info.tools_called:
        return None, content
    calls = [
        FunctionCall(id=call.id, name=call.function.name, arguments=call.function.arguments) for call in info.tool_calls
    ]
    rest = info.content
    return calls, None if rest and not rest.strip() else rest


def _as_call(found: FunctionDefinition) -> FunctionCall:
    return FunctionCall(name=found.name, arguments=json.dumps(found.parameters, ensure_ascii=False))


def finish_reason(
    request: ChatCompletionRequest, ended: str | None, called_tools: bool, message: ChatMessage, released: bool = False
) -> str:
    """ "tool_calls" where the model chose to call, or had to, and stopped; a named tool keeps its own.

    Args:
        ended: why the engine stopped. called_tools: as `make_message` says. released: as vLLM 0.22.1 does, also where
            the answer was cut, or a forced call did not come about.
    """
    forced = request.tool_choice == "required" and (released or bool(message.tool_calls))
    if (called_tools and (released or ended == "stop")) or (forced and ended == "stop"):
        return "tool_calls"
    return ended or "stop"


def last_message_of(conversation: list[dict[str, Any]], role: str) -> str:
    """What `echo` puts in front: the last message, where it is of the same role as the answer."""
    last = conversation[-1] if conversation else {}
    content = last.get("content") if last.get("role") == role else None
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if "text" in part)
    return content or ""
