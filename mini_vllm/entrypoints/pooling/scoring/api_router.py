"""`POST /score`, `/rerank` and their versions. Upstream twin: `vllm/entrypoints/pooling/scoring/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter(dependencies=[Depends(validate_json_request)], responses=ERRORS)


@router.post("/score")
@router.post("/v1/score")
@with_cancellation
@load_aware_call
async def create_score(request: ScoreRequest, raw_request: Request) -> Response:
    """A score for each pair of texts."""
    return respond(await raw_request.app.state.serving_scores.create_score(request, raw_request))


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
@with_cancellation
@load_aware_call
async def do_rerank(request: RerankRequest, raw_request: Request) -> Response:
    """Documents by how well they fit a query."""
    return respond(await raw_request.app.state.serving_scores.do_rerank(request, raw_request))
