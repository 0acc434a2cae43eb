"""`/metrics` in Prometheus' text form. Upstream twin: `vllm/entrypoints/serve/instrumentator/metrics.py`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from mini_vllm.metrics.multiprocess import FLUSH_S
from mini_vllm.metrics.prometheus import CONTENT_TYPE, core_stats, exposition

router = APIRouter()


@router.get("/metrics", response_class=Response)
async def metrics(raw_request: Request) -> Response:
    """What the engine and the server have counted, as it stands now."""
    state = raw_request.app.state
    shared = getattr(state, "multiprocess_metrics", None)
    if shared is not None:
        await asyncio.sleep(FLUSH_S)
        stats = await core_stats(state.engine_client.core_client)
        return Response(shared.exposition(stats), media_type=CONTENT_TYPE)
    text = await exposition(state.engine_client, state.http_metrics)
    return Response(text, media_type=CONTENT_TYPE)


def attach_router(app: FastAPI) -> None:
    """Add the route."""
    app.include_router(router)
