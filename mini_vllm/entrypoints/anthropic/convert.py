"""A conversation in Anthropic's form as a chat in OpenAI's.

Upstream: upstream/vllm/entrypoints/anthropic/serving.py:121 — `_convert_anthropic_to_openai_request`.
"""

from __future__ import annotations

import json
from typing import Any

from mini_vllm.entrypoints.anthropic.protocol import (
    AnthropicContentBlock,
    AnthropicCountTokensRequest,
    AnthropicMessage,
    AnthropicMessagesRequest,
    AnthropicTool,
    AnthropicToolChoice,
)
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.utils import random_uuid

AnyRequest = AnthropicMessagesRequest | AnthropicCountTokensRequest
_BILLING = "x-anthropic-billing-header"
"""A client's own line, new with every request, which would spoil the prefix cache."""


def to_chat_request(request: AnyRequest) -> ChatCompletionRequest:
    """The same request, for `OpenAIServingChat`. Raises ValueError where that form does not allow it."""
    body: dict[str, Any] = {"model": request.model, "messages": _messages(request)}
    body["chat_template_kwargs"] = request.chat_template_kwargs
    if isinstance(request, AnthropicMessagesRequest):
        body |= {
            "max_tokens": request.max_tokens,
            "max_completion_tokens": request.max_tokens,
            "stop": request.stop_sequences,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "kv_transfer_params": request.kv_transfer_params,
        }
        if request.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request.tool_choice)
    return ChatCompletionRequest.model_validate(body)


def _messages(request: AnyRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if isinstance(request.system, str) and request.system:
        found.append({"role": "system", "content": request.system})
    elif request.system:
        texts = [block.text for block in request.system if block.type == "text" and block.text]
        found.append({"role": "system", "content": "".join(t for t in texts if not t.startswith(_BILLING))})
    for message in request.messages:
        found += _message(message)
    return found


def _message(message: AnthropicMessage) -> list[dict[str, Any]]:
    """One turn; results of tools are turns of their own, before what the user says about them."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    parts: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    made: dict[str, Any] = {"role": message.role}
    for block in message.content:
        if block.type == "text" and block.text:
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image" and block.source:
            parts.append({"type": "image_url", "image_url": {"url": _image_url(block.source)}})
        elif block.type == "thinking" and block.thinking is not None:
            made["reasoning"] = made.get("reasoning", "") + block.thinking
        elif block.type == "tool_use":
            made.setdefault("tool_calls", []).append(_tool_call(block))
        elif block.type == "tool_result" and message.role == "user":
            results.append(_tool_result(block))
        elif block.type == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.content or ''}"})
    if parts:
        made["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    return results if message.role == "user" and "content" not in made else [*results, made]


def _image_url(source: dict[str, Any]) -> str:
    if source.get("type") == "url":
        return source.get("url", "")
    return f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"


def _tool_call(block: AnthropicContentBlock) -> dict[str, Any]:
    function = {"name": block.name or "", "arguments": json.dumps(block.input or {})}
    return {"id": block.id or f"call_{random_uuid()}", "type": "function", "function": function}


def _tool_result(block: AnthropicContentBlock) -> dict[str, Any]:
    content = block.content or ""
    if isinstance(content, list):
        content = "\n".join(item.get("text", "") for item in content if item.get("type") == "text")
    return {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": content}


def _tool(tool: AnthropicTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    if tool.defer_loading is not None:
        function["defer_loading"] = tool.defer_loading
    return {"type": "function", "function": function}


def _tool_choice(choice: AnthropicToolChoice | None) -> Any:
    if choice is not None and choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "auto" if choice is None else {"auto": "auto", "any": "required", "none": "none"}[choice.type]
