"""`/v1/responses`: make, retrieve, cancel. Upstream twin: `vllm/entrypoints/openai/responses/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter()


@router.post("/v1/responses", dependencies=[Depends(validate_json_request)], responses=ERRORS)
@with_cancellation
@load_aware_call
async def create_responses(request: ResponsesRequest, raw_request: Request) -> Response:
    """Respond to a text or a list of items."""
    return respond(await raw_request.app.state.openai_serving_responses.create_responses(request, raw_request))


@router.get("/v1/responses/{response_id}", responses=ERRORS)
@load_aware_call
async def retrieve_responses(
    response_id: str, raw_request: Request, starting_after: int | None = None, stream: bool | None = False
) -> Response:
    """A response that is kept, or its events."""
    handler = raw_request.app.state.openai_serving_responses
    return respond(await handler.retrieve_responses(response_id, starting_after, stream))


@router.post("/v1/responses/{response_id}/cancel", responses=ERRORS)
@load_aware_call
async def cancel_responses(response_id: str, raw_request: Request) -> Response:
    """End a response that is made in the background."""
    return respond(await raw_request.app.state.openai_serving_responses.cancel_responses(response_id))


def attach_router(app: FastAPI) -> None:
    """Add the routes."""
    app.include_router(router)
