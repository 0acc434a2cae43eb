"""`POST /v1/messages` and `/v1/messages/count_tokens`. Upstream twin: `vllm/entrypoints/anthropic/api_router.py`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from mini_vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicError,
    AnthropicErrorResponse,
    AnthropicMessagesRequest,
)
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.server_utils import EXPECTED_ERRORS
from mini_vllm.entrypoints.openai.utils import validate_json_request
from mini_vllm.entrypoints.utils import (
    EventStreamResponse,
    create_error_response,
    load_aware_call,
    with_cancellation,
)

router = APIRouter()
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}},
    **{status: {"model": AnthropicErrorResponse} for status in (400, 404, 500)},
}


def translate_error_response(found: ErrorResponse) -> JSONResponse:
    """The same in Anthropic's form."""
    error = AnthropicError(type=found.error.type, message=found.error.message)
    return JSONResponse(AnthropicErrorResponse(error=error).model_dump(), status_code=found.error.code)


@router.post("/v1/messages", dependencies=[Depends(validate_json_request)], responses=_RESPONSES)
@with_cancellation
@load_aware_call
async def create_messages(request: AnthropicMessagesRequest, raw_request: Request) -> Response:
    """Go on with a conversation. What is wrong with a request is a 400; upstream says 500 of much of it."""
    try:
        result = await raw_request.app.state.anthropic_serving_messages.create_messages(request, raw_request)
    except EXPECTED_ERRORS as error:
        return translate_error_response(create_error_response(error))
    return _respond(result)


@router.post("/v1/messages/count_tokens", dependencies=[Depends(validate_json_request)], responses=_RESPONSES)
@with_cancellation
@load_aware_call
async def count_tokens(request: AnthropicCountTokensRequest, raw_request: Request) -> Response:
    """Count the tokens of a conversation."""
    try:
        result = await raw_request.app.state.anthropic_serving_messages.count_tokens(request)
    except EXPECTED_ERRORS as error:
        return translate_error_response(create_error_response(error))
    return _respond(result)


def _respond(result: Any) -> Response:
    if isinstance(result, ErrorResponse):
        return translate_error_response(result)
    if hasattr(result, "model_dump"):
        return JSONResponse(result.model_dump(exclude_none=True))
    return EventStreamResponse(result)


def attach_router(app: FastAPI) -> None:
    """Add the routes."""
    app.include_router(router)
