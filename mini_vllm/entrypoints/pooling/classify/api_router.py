"""`POST /classify`. Upstream twin: `vllm/entrypoints/pooling/classify/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter(dependencies=[Depends(validate_json_request)], responses=ERRORS)


@router.post("/classify")
@with_cancellation
@load_aware_call
async def create_classify(request: ClassificationRequest, raw_request: Request) -> Response:
    """A label for each input."""
    return respond(await raw_request.app.state.serving_classification.create_classify(request, raw_request))
