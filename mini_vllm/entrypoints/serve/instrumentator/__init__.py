"""Routes that watch the server. Upstream twin: `vllm/entrypoints/serve/instrumentator/__init__.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI


def register_instrumentator_api_routers(app: FastAPI) -> None:
    """Add them.

    Upstream: upstream/vllm/entrypoints/serve/instrumentator/__init__.py:9 — `register_instrumentator_api_routers`.
    """
    from mini_vllm.entrypoints.serve.instrumentator.basic import router as basic_router
    from mini_vllm.entrypoints.serve.instrumentator.health import router as health_router
    from mini_vllm.entrypoints.serve.instrumentator.metrics import attach_router as attach_metrics_router

    app.include_router(basic_router)
    app.include_router(health_router)
    attach_metrics_router(app)
