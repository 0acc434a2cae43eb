"""`GET /v1/models`. Upstream twin: `vllm/entrypoints/openai/models/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

router = APIRouter()


@router.get("/v1/models")
async def show_available_models(raw_request: Request) -> JSONResponse:
    """The names that requests may use."""
    return JSONResponse(raw_request.app.state.openai_serving_models.show_available_models().model_dump())


def attach_router(app: FastAPI) -> None:
    """Add the route."""
    app.include_router(router)
