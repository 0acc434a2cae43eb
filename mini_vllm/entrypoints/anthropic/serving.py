"""`/v1/messages`: Anthropic's API on top of the chat's. Upstream twin: `vllm/entrypoints/anthropic/serving.py`."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import Request

from mini_vllm.entrypoints.anthropic.convert import to_chat_request
from mini_vllm.entrypoints.anthropic.protocol import (
    AnthropicContentBlock,
    AnthropicContextManagement,
    AnthropicCountTokensRequest,
    AnthropicCountTokensResponse,
    AnthropicMessagesRequest,
    AnthropicMessagesResponse,
    AnthropicUsage,
)
from mini_vllm.entrypoints.anthropic.stream import STOP_REASONS, message_stream_generator
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from mini_vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse


class AnthropicServingMessages(OpenAIServingChat):
    """Upstream: upstream/vllm/entrypoints/anthropic/serving.py:56 — `AnthropicServingMessages`."""

    async def create_messages(
        self, request: AnthropicMessagesRequest, raw_request: Request | None = None
    ) -> AsyncGenerator[str, None] | AnthropicMessagesResponse | ErrorResponse:
        """A stream of events, an answer, or an error."""
        chat_request = to_chat_request(request)
        created = self._create_messages(chat_request, raw_request)
        return await self._with_kv_transfer_rejection_cleanup(created, chat_request)

    async def _create_messages(
        self, chat_request: ChatCompletionRequest, raw_request: Request | None
    ) -> AsyncGenerator[str, None] | AnthropicMessagesResponse | ErrorResponse:
        context = await self.start(chat_request, raw_request)
        if isinstance(context, ErrorResponse):
            return context
        if chat_request.stream:
            return message_stream_generator(self, context)
        answer = await self.chat_completion_full_generator(context)
        return answer if isinstance(answer, ErrorResponse) else as_message(answer)

    async def count_tokens(self, request: AnthropicCountTokensRequest) -> AnthropicCountTokensResponse | ErrorResponse:
        """How long the prompt of a conversation is."""
        chat_request = to_chat_request(request)
        refused = self._check_model(chat_request.model)
        rendered = refused or await self.openai_serving_render.render_chat(chat_request)
        if isinstance(rendered, ErrorResponse):
            return rendered
        count = len(rendered[1]["prompt_token_ids"])
        before = AnthropicContextManagement(original_input_tokens=count)
        return AnthropicCountTokensResponse(input_tokens=count, context_management=before)


def as_message(answer: ChatCompletionResponse) -> AnthropicMessagesResponse:
    """A chat's answer as blocks: thinking, text, uses of tools."""
    choice = answer.choices[0]
    content = []
    if choice.message.reasoning:
        signature = uuid.uuid4().hex
        content.append(AnthropicContentBlock(type="thinking", thinking=choice.message.reasoning, signature=signature))
    if choice.message.content:
        content.append(AnthropicContentBlock(type="text", text=choice.message.content))
    for call in choice.message.tool_calls:
        arguments = _arguments(call.function.arguments)
        content.append(AnthropicContentBlock(type="tool_use", id=call.id, name=call.function.name, input=arguments))
    usage = answer.usage
    return AnthropicMessagesResponse(
        id=answer.id,
        content=content,
        model=answer.model,
        stop_reason=STOP_REASONS.get(choice.finish_reason or "stop"),
        usage=AnthropicUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens or 0),
        kv_transfer_params=answer.kv_transfer_params,
    )


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments; of an answer that was cut inside them, those that had come. Upstream answers 500 then."""
    try:
        found = json.loads(text)
    except ValueError:
        from partial_json_parser import Allow

        from mini_vllm.tool_parsers.utils import partial_json_loads

        try:
            found, _ = partial_json_loads(text, Allow.ALL)
        except (ValueError, IndexError):
            found = {}
    return found if isinstance(found, dict) else {}
