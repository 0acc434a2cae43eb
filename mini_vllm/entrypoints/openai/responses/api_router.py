"""`POST /v1/responses`. Upstream twin: `vllm/entrypoints/openai/responses/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from mini_vllm.entrypoints.openai.responses.serving import not_found
from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter()


@router.post("/v1/responses", dependencies=[Depends(validate_json_request)], responses=ERRORS)
@with_cancellation
@load_aware_call
async def create_responses(request: ResponsesRequest, raw_request: Request) -> Response:
    """Respond to a text or a list of items."""
    return respond(await raw_request.app.state.openai_serving_responses.create_responses(request, raw_request))


@router.get("/v1/responses/{response_id}")
async def retrieve_responses(response_id: str) -> Response:
    """404: none is kept."""
    return respond(not_found(response_id))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_responses(response_id: str) -> Response:
    """404: none is kept."""
    return respond(not_found(response_id))


def attach_router(app: FastAPI) -> None:
    """Add the routes."""
    app.include_router(router)
