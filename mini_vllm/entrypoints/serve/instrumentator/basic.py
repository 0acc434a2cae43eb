"""`/load` and `/version`. Upstream twin: `vllm/entrypoints/serve/instrumentator/basic.py`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from mini_vllm import __version__

router = APIRouter()


@router.get("/load")
async def get_server_load_metrics(raw_request: Request) -> JSONResponse:
    """Requests that are being answered; 0 for ever without `--enable-server-load-tracking`."""
    return JSONResponse({"server_load": raw_request.app.state.server_load_metrics})


@router.get("/version")
async def show_version() -> JSONResponse:
    """The version of mini_vllm."""
    return JSONResponse({"version": __version__})
