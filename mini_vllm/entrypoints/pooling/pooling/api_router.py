"""`POST /pooling`. Upstream twin: `vllm/entrypoints/pooling/pooling/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter(dependencies=[Depends(validate_json_request)], responses=ERRORS)


@router.post("/pooling")
@with_cancellation
@load_aware_call
async def create_pooling(request: PoolingRequest, raw_request: Request) -> Response:
    """Whatever the model pools."""
    return respond(await raw_request.app.state.serving_pooling.create_pooling(request, raw_request))
