"""Routes that generate, and what serves them. Upstream twin: `vllm/entrypoints/openai/generate/api_router.py`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State

from mini_vllm.entrypoints.anthropic.api_router import attach_router as attach_messages_router
from mini_vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from mini_vllm.entrypoints.openai.chat_completion.api_router import attach_router as attach_chat_router
from mini_vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from mini_vllm.entrypoints.openai.completion.api_router import attach_router as attach_completion_router
from mini_vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.responses.api_router import attach_router as attach_responses_router
from mini_vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from mini_vllm.entrypoints.serve.render.api_router import attach_router as attach_render_router
from mini_vllm.entrypoints.serve.render.serving import OpenAIServingRender


def register_generate_api_routers(app: FastAPI) -> None:
    """Upstream: upstream/vllm/entrypoints/openai/generate/api_router.py:19 — `register_generate_api_routers`."""
    attach_chat_router(app)
    attach_completion_router(app)
    attach_responses_router(app)
    attach_messages_router(app)
    attach_render_router(app)


def init_generate_state(state: State, common: tuple[Any, ...], render: OpenAIServingRender, parsers: Parsers) -> None:
    """Args: common: the arguments of every `OpenAIServing`.

    Upstream: upstream/vllm/entrypoints/openai/generate/api_router.py:45 — `init_generate_state`.
    """
    state.openai_serving_chat = OpenAIServingChat(*common)
    state.anthropic_serving_messages = AnthropicServingMessages(*common)
    state.openai_serving_responses = OpenAIServingResponses(*common)
    for chat in (state.openai_serving_chat, state.anthropic_serving_messages, state.openai_serving_responses):
        chat.parsers, chat.openai_serving_render = parsers, render
    state.openai_serving_completion = OpenAIServingCompletion(*common)
    state.openai_serving_completion.openai_serving_render = render
    state.openai_serving_completion.parsers = parsers
