"""`POST /v1/completions`. Upstream twin: `vllm/entrypoints/openai/completion/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.completion.protocol import CompletionRequest
from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter()


@router.post("/v1/completions", dependencies=[Depends(validate_json_request)], responses=ERRORS)
@with_cancellation
@load_aware_call
async def create_completion(request: CompletionRequest, raw_request: Request) -> Response:
    """Continue a prompt."""
    handler = raw_request.app.state.openai_serving_completion
    return respond(await handler.create_completion(request, raw_request))


def attach_router(app: FastAPI) -> None:
    """Add the route."""
    app.include_router(router)
