"""`/v1/completions/render` and `/v1/chat/completions/render`: what the engine would be asked, and nothing computed.

Upstream twin: `vllm/entrypoints/serve/render/api_router.py`. There `/inference/v1/generate` takes what they give; here
nothing does (docs/serving.md).
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.completion.protocol import CompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils import random_uuid

router = APIRouter()
_RESPONSES = {status: said for status, said in ERRORS.items() if status != 200}
_ALWAYS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature")


@router.post("/v1/chat/completions/render", dependencies=[Depends(validate_json_request)], responses=_RESPONSES)
async def render_chat_completion(request: ChatCompletionRequest, raw_request: Request) -> Response:
    """The token ids of a conversation, and the sampling parameters of its request.

    Upstream: upstream/vllm/entrypoints/serve/render/serving.py:120 — `OpenAIServingRender.render_chat_request`.
    """
    serving = raw_request.app.state.openai_serving_chat
    if (refused := _refused(serving, request)) is not None:
        return respond(refused)
    rendered = await raw_request.app.state.openai_serving_render.render_chat(request)
    if isinstance(rendered, ErrorResponse):
        return respond(rendered)
    return JSONResponse(_generate_request(serving, request, rendered[1], "chatcmpl"))


@router.post("/v1/completions/render", dependencies=[Depends(validate_json_request)], responses=_RESPONSES)
async def render_completion(request: CompletionRequest, raw_request: Request) -> Response:
    """The same of each prompt of a completion.

    Upstream: upstream/vllm/entrypoints/serve/render/serving.py:270 — `OpenAIServingRender.render_completion_request`.
    """
    serving = raw_request.app.state.openai_serving_completion
    if (refused := _refused(serving, request)) is not None:
        return respond(refused)
    rendered = await raw_request.app.state.openai_serving_render.render_completion(request)
    if isinstance(rendered, ErrorResponse):
        return respond(rendered)
    return JSONResponse([_generate_request(serving, request, prompt, "cmpl") for prompt in rendered])


def _refused(serving: Any, request: Any) -> ErrorResponse | None:
    """Why a request is not rendered, as far as it says so itself."""
    refused: ErrorResponse | None = serving._check_model(request.model)
    if refused is None and request.use_beam_search:
        refused = create_error_response("Beam search is not supported by the render endpoint")
    return refused


def _generate_request(serving: Any, request: Any, prompt: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Upstream: upstream/vllm/entrypoints/serve/disagg/protocol.py:62 — `GenerateRequest`."""
    params = serving._sampling_params(request, prompt)
    if prompt.get("mm_features"):
        raise ValueError("render gives no features: a conversation with media cannot be rendered")
    return {
        "request_id": f"{prefix}-{random_uuid()}",
        "token_ids": prompt["prompt_token_ids"],
        "features": None,
        "sampling_params": _shown(params),
        "model": request.model,
        "stream": bool(request.stream),
        "stream_options": None if request.stream_options is None else request.stream_options.model_dump(),
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "kv_transfer_params": request.kv_transfer_params,
    }


def _shown(params: SamplingParams) -> dict[str, Any]:
    """What differs from the defaults, and the penalties and the temperature in any case."""
    found: dict[str, Any] = {}
    for each in fields(params):
        value = getattr(params, each.name)
        if each.init and (each.name in _ALWAYS or each.default is MISSING or value != each.default):
            found[each.name] = value.value if each.name == "output_kind" else _plain(value)
    return found


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.init}
    return value if isinstance(value, dict | list | str | int | float) or value is None else str(value)


def attach_router(app: FastAPI) -> None:
    """Add the routes."""
    app.include_router(router)
