"""From a request to prompts for the engine, and what can be wrong on the way. Upstream twin:
`vllm/entrypoints/serve/render/serving.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.engine.serving import ServingOptions
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.renderers.base import BaseRenderer
from mini_vllm.renderers.params import merge_kwargs

_UNTRUSTED = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with "
    "untrusted chat template."
)


class OpenAIServingRender:
    """Prompts and conversations as token ids.

    Upstream: upstream/vllm/entrypoints/serve/render/serving.py:65 — `OpenAIServingRender`.
    """

    def __init__(self, renderer: BaseRenderer, options: ServingOptions, parsers: Parsers, max_model_len: int) -> None:
        self.renderer, self.options, self.parsers, self.max_model_len = renderer, options, parsers, max_model_len

    async def render_completion(self, request: Any) -> list[dict[str, Any]] | ErrorResponse:
        """One prompt for the engine for each prompt of the request.

        Upstream: upstream/vllm/entrypoints/serve/render/serving.py:326 — `OpenAIServingRender.render_completion`.
        """
        if request.suffix is not None:
            return create_error_response("suffix is not currently supported")
        if request.prompt_embeds is not None:
            raise VLLMValidationError(
                "You must set `--enable-prompt-embeds` to input `prompt_embeds`.", parameter="prompt_embeds"
            )
        return await self.preprocess_completion(request, request.prompt)

    async def preprocess_completion(self, request: Any, prompt: Any) -> list[dict[str, Any]]:
        """A text, ids, or a list of either, as prompts for the engine."""
        params = request.build_tok_params(self.max_model_len)
        return await self.renderer.render_cmpl_async(prompt_to_seq(prompt), params, _extras(request))

    async def render_chat(self, request: Any) -> tuple[list[dict[str, Any]], dict[str, Any]] | ErrorResponse:
        """The conversation as the template saw it, and one prompt for the engine.

        Upstream: upstream/vllm/entrypoints/serve/render/serving.py:185 — `OpenAIServingRender.render_chat`.
        """
        choice = request.tool_choice
        if self.parsers.tool_parser is None and choice not in (None, "none"):
            if choice == "auto" and not self.options.enable_auto_tools:
                return create_error_response(
                    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
                )
            if choice != "auto":
                return create_error_response(f'tool_choice="{choice}" requires --tool-call-parser to be set')
        hidden = choice == "none" and self.options.exclude_tools_when_tool_choice_none
        tools = None if request.tools is None or hidden else [tool.model_dump() for tool in request.tools]
        refused = self.validate_chat_template(request)
        if refused is not None:
            return refused
        rendered = await self.preprocess_chat(request, tools)
        self.parsers.adjust_request(request)
        return rendered

    def validate_chat_template(self, request: Any) -> ErrorResponse | None:
        """A template is a program: a request's own is refused unless the server trusts it."""
        kwargs = request.chat_template_kwargs or {}
        given = request.chat_template is not None or kwargs.get("chat_template") is not None
        return create_error_response(_UNTRUSTED) if given and not self.options.trust_request_chat_template else None

    async def preprocess_chat(
        self, request: Any, tools: list[dict[str, Any]] | None
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Render and tokenize. Raises ValueError where template, conversation or length are wrong."""
        options = self.options
        defaults = merge_kwargs(options.default_chat_template_kwargs, {"tools": tools})
        chat_params = request.build_chat_params(options.chat_template, options.chat_template_content_format)
        tok_params = request.build_tok_params(self.max_model_len)
        return await self.renderer.render_chat_async(
            request.messages, chat_params.with_defaults(defaults), tok_params, _extras(request)
        )


def prompt_to_seq(prompt: Any) -> list[Any]:
    """A request's `prompt` as a list of prompts: one text, one list of ids, or several of either.

    Upstream: upstream/vllm/renderers/inputs/preprocess.py:48 — `prompt_to_seq`.
    """
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not prompt:
        raise ValueError("You must pass at least one prompt")
    return list(prompt)


def _extras(request: Any) -> dict[str, Any]:
    salt = getattr(request, "cache_salt", None)
    return {} if salt is None else {"cache_salt": salt}
