"""`POST /reset_prefix_cache` and `/reset_mm_cache`, in development mode.

Upstream twin: `vllm/entrypoints/serve/cache/api_router.py`.
"""

from __future__ import annotations

import os

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import Response

from mini_vllm.logger import init_logger

logger = init_logger(__name__)
router = APIRouter()


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(
    raw_request: Request,
    reset_running_requests: bool = Query(default=False),
    reset_external: bool = Query(default=False),
) -> Response:
    """Forget all cached prefixes. 200 whether or not anything could be forgotten, as upstream."""
    logger.info("Resetting prefix cache...")
    await raw_request.app.state.engine_client.reset_prefix_cache(reset_running_requests, reset_external)
    return Response(status_code=200)


@router.post("/reset_mm_cache")
async def reset_mm_cache(raw_request: Request) -> Response:
    """Forget pictures and films that are ready. 200 whether or not there were any, as upstream."""
    logger.info("Resetting multi-modal cache...")
    await raw_request.app.state.engine_client.reset_mm_cache()
    return Response(status_code=200)


def in_development_mode() -> bool:
    """True where VLLM_SERVER_DEV_MODE is set to 1 (upstream/vllm/envs.py:1239 — "VLLM_SERVER_DEV_MODE")."""
    return os.environ.get("VLLM_SERVER_DEV_MODE", "0") == "1"


def attach_router(app: FastAPI) -> None:
    """Add the routes, in development mode."""
    if in_development_mode():
        logger.warning("development routes are there for everybody who reaches this server")
        app.include_router(router)
