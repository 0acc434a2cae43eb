"""`POST /v1/embeddings`, `/v2/embed`. Upstream twin: `vllm/entrypoints/pooling/embed/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.pooling.embed.protocol import CohereEmbedRequest, EmbeddingRequest
from mini_vllm.entrypoints.utils import load_aware_call, with_cancellation

router = APIRouter(dependencies=[Depends(validate_json_request)], responses=ERRORS)


@router.post("/v1/embeddings")
@with_cancellation
@load_aware_call
async def create_embedding(request: EmbeddingRequest, raw_request: Request) -> Response:
    """A vector for each input."""
    return respond(await raw_request.app.state.serving_embedding.create_embedding(request, raw_request))


@router.post("/v2/embed")
@with_cancellation
@load_aware_call
async def create_cohere_embedding(request: CohereEmbedRequest, raw_request: Request) -> Response:
    """As Cohere's API says it."""
    result = await raw_request.app.state.serving_embedding.create_cohere_embedding(request, raw_request)
    return JSONResponse(result) if isinstance(result, dict) else respond(result)
