"""`POST /v1/chat/completions`. Upstream twin: `vllm/entrypoints/openai/chat_completion/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter()


@router.post("/v1/chat/completions", dependencies=[Depends(validate_json_request)], responses=ERRORS)
@with_cancellation
@load_aware_call
async def create_chat_completion(request: ChatCompletionRequest, raw_request: Request) -> Response:
    """Answer a conversation."""
    handler = raw_request.app.state.openai_serving_chat
    return respond(await handler.create_chat_completion(request, raw_request))


def attach_router(app: FastAPI) -> None:
    """Add the route."""
    app.include_router(router)
