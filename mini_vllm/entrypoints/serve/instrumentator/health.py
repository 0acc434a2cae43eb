"""`/health`: 200 while the engine lives. Upstream twin: `vllm/entrypoints/serve/instrumentator/health.py`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mini_vllm.engine.exceptions import EngineDeadError

router = APIRouter()


@router.get("/health", response_class=Response)
async def health(raw_request: Request) -> Response:
    """200, or 503 where the engine is gone or gives no sign of life. The core is asked; upstream's is not."""
    try:
        await raw_request.app.state.engine_client.check_health()
    except (EngineDeadError, TimeoutError):
        return Response(status_code=503)
    return Response(status_code=200)
