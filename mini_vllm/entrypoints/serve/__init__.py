"""Routes beside OpenAI's: adapters, health, metrics, tokens. Upstream twin: `vllm/entrypoints/serve/__init__.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI


def register_vllm_serve_api_routers(app: FastAPI) -> None:
    """Add them all; those for development only where the server runs in that mode.

    Upstream: upstream/vllm/entrypoints/serve/__init__.py:12 — `register_vllm_serve_api_routers`.
    """
    from mini_vllm.entrypoints.serve.cache.api_router import attach_router as attach_cache_router
    from mini_vllm.entrypoints.serve.elastic_ep.api_router import attach_router as attach_elastic_ep_router
    from mini_vllm.entrypoints.serve.instrumentator import register_instrumentator_api_routers
    from mini_vllm.entrypoints.serve.lora.api_router import attach_router as attach_lora_router
    from mini_vllm.entrypoints.serve.profile.api_router import attach_router as attach_profile_router
    from mini_vllm.entrypoints.serve.tokenize.api_router import attach_router as attach_tokenize_router

    attach_lora_router(app)
    attach_cache_router(app)
    attach_elastic_ep_router(app)
    attach_profile_router(app)
    attach_tokenize_router(app)
    register_instrumentator_api_routers(app)
