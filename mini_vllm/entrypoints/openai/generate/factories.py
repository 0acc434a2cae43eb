"""Which bodies `/invocations` takes, and who answers them. Upstream twin:
`vllm/entrypoints/openai/generate/factories.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.completion.api_router import create_completion
from mini_vllm.entrypoints.openai.completion.protocol import CompletionRequest


def get_generate_invocation_types() -> list[tuple[Any, Any]]:
    """(the request's class, the route's function) each; of two that fit, the first one answers.

    Upstream: upstream/vllm/entrypoints/openai/generate/factories.py:16 — `get_generate_invocation_types`.
    """
    return [(ChatCompletionRequest, create_chat_completion), (CompletionRequest, create_completion)]
