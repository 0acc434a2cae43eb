"""From items to the messages of a chat, and from a chat's answer to items. Upstream twin:
`vllm/entrypoints/openai/responses/utils.py`.

Items: a message {"role", "content"}, with or without "type": "message"; "function_call", "function_call_output",
"reasoning".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatMessage
from mini_vllm.entrypoints.openai.responses.protocol import Item, ResponsesRequest
from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.utils import random_uuid

_SAME = (
    "model", "temperature", "top_p", "top_k", "logit_bias", "stop", "seed", "ignore_eos", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "skip_special_tokens", "include_stop_str_in_output", "priority",
    "cache_salt", "structured_outputs", "chat_template_kwargs", "parallel_tool_calls", "stream", "vllm_xargs",
    "kv_transfer_params",
)  # fmt: skip
"""Fields that a chat has under the same name."""


class ResponsesChat(ChatCompletionRequest):
    """The chat behind a response: errors about lengths name the field that the client knows."""

    def build_tok_params(self, max_model_len: int, max_tokens_name: str = "") -> Any:
        """See `GenerationRequest.build_tok_params`."""
        return super(ChatCompletionRequest, self).build_tok_params(max_model_len, "max_output_tokens")


def to_chat_request(request: ResponsesRequest, history: Sequence[dict[str, Any]] = ()) -> ResponsesChat:
    """The same request, for `OpenAIServingChat`. Raises ValueError where it cannot be said so.

    `history`: messages between instructions and input.

    The tokenizer adds its special tokens to those of the template, as upstream.
    """
    body: dict[str, Any] = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    body |= {
        "messages": construct_input_messages(request.instructions, request.input, history),
        "max_completion_tokens": request.max_output_tokens,
        "add_special_tokens": True,
        "truncate_prompt_tokens": -1 if request.truncation == "auto" else None,
        "reasoning_effort": None if request.reasoning is None else request.reasoning.effort,
        **_response_format(request),
        **_tools(request),
    }
    if request.wants_logprobs():
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if isinstance(request.input, list) and request.input:
        last = request.input[-1]
        if last.get("status") in ("in_progress", "incomplete") and last.get("type", "message") == "message":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
    return ResponsesChat.model_validate(body)


def _response_format(request: ResponsesRequest) -> dict[str, Any]:
    form = None if request.text is None else request.text.format
    if form is None:
        return {}
    if request.structured_outputs is not None:
        message = "Cannot specify both structured_outputs and text.format"
        raise VLLMValidationError(message, parameter="structured_outputs")
    if form.get("type") == "json_schema":
        schema = {"name": form.get("name", "answer"), "schema": form.get("schema")}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": form.get("type", "text")}}


def _tools(request: ResponsesRequest) -> dict[str, Any]:
    if not request.tools or request.tool_choice == "none":
        return {}
    kinds = {str(tool.get("type")) for tool in request.tools} - {"function"}
    if kinds:
        raise ValueError(f"tools must be functions so far, got {', '.join(sorted(kinds))}")
    choice = request.tool_choice
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    names = ("name", "description", "parameters")
    tools = [{"type": "function", "function": {name: tool.get(name) for name in names}} for tool in request.tools]
    return {"tools": tools, "tool_choice": choice}


def construct_input_messages(
    instructions: str | None, items: str | Sequence[Item], history: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Upstream: upstream/vllm/entrypoints/openai/responses/utils.py:79 — `construct_input_messages`."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    messages += history
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for item in items:
        _add(messages, item)
    return messages


def continue_from(messages: Sequence[dict[str, Any]], output: Sequence[Item]) -> list[dict[str, Any]]:
    """A conversation and what was answered, without instructions and thoughts: the history of the next request.

    Upstream leaves out the calls that were made, so that their outputs answer nothing.
    """
    history = [dict(each) for each in messages if each.get("role") not in ("system", "developer")]
    for item in output:
        if item["type"] == "function_call":
            _add(history, item)
        elif item["type"] == "message":
            history += [{"role": "assistant", "content": part["text"]} for part in item["content"]]
    return history


def _add(messages: list[dict[str, Any]], item: Item) -> None:
    """Thoughts, text and calls of one turn are several items, and one message."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
        return
    if kind == "message" and item.get("role") != "assistant":
        messages.append({name: item[name] for name in ("role", "content", "name") if name in item})
        return
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    turn = messages[-1]
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        if item.get("encrypted_content"):
            raise ValueError("Encrypted content is not supported.")
        parts = item.get("content") or item.get("summary") or []
        turn["reasoning"] = parts[0].get("text", "") if parts else ""
    elif kind == "message" and "content" in turn:
        messages.append({"role": "assistant", "content": item.get("content")})
    elif kind == "message":
        turn["content"] = item.get("content")
    else:
        raise ValueError(f"input: an item of type {kind!r} is not supported")


def output_items(message: ChatMessage, logprobs: list[Item] | None) -> list[Item]:
    """Thoughts, text and calls of an answer."""
    items: list[Item] = []
    if message.reasoning:
        items.append(reasoning_item(f"rs_{random_uuid()}", message.reasoning))
    if message.content:
        items.append(message_item(f"msg_{random_uuid()}", message.content, "completed", logprobs))
    for call in message.tool_calls:
        name, arguments = call.function.name, call.function.arguments
        items.append(function_call_item(f"fc_{random_uuid()}", call.id, name, arguments, "completed"))
    return items


def text_part(text: str, logprobs: list[Item] | None) -> Item:
    """The text of a message."""
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def message_item(item_id: str, text: str | None, status: str, logprobs: list[Item] | None = None) -> Item:
    """A message; without a text, one that has just begun."""
    content = [] if text is None else [text_part(text, logprobs)]
    return {"id": item_id, "content": content, "role": "assistant", "status": status, "type": "message", "phase": None}


def reasoning_item(item_id: str, text: str | None, status: str | None = None) -> Item:
    """Thoughts."""
    content = None if text is None else [{"text": text, "type": "reasoning_text"}]
    return {"id": item_id, "summary": [], "type": "reasoning", "content": content, "encrypted_content": None,
            "status": status}  # fmt: skip


def function_call_item(item_id: str, call_id: str, name: str, arguments: str, status: str) -> Item:
    """A call."""
    return {"arguments": arguments, "call_id": call_id, "name": name, "type": "function_call", "id": item_id,
            "status": status}  # fmt: skip
