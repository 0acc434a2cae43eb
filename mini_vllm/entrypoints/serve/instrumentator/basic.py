"""`/load`, `/version` and `/ping`. Upstream twin: `vllm/entrypoints/serve/instrumentator/basic.py`; `/ping` stands in
`upstream/vllm/entrypoints/sagemaker/api_router.py` there.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from mini_vllm import __version__
from mini_vllm.entrypoints.serve.instrumentator.health import health

router = APIRouter()


@router.get("/load")
async def get_server_load_metrics(raw_request: Request) -> JSONResponse:
    """Requests that are being answered; 0 for ever without `--enable-server-load-tracking`."""
    return JSONResponse({"server_load": raw_request.app.state.server_load_metrics})


@router.get("/version")
async def show_version() -> JSONResponse:
    """The version of mini_vllm."""
    return JSONResponse({"version": __version__})


@router.post("/ping", response_class=Response)
@router.get("/ping", response_class=Response)
async def ping(raw_request: Request) -> Response:
    """As `/health`, under the name that SageMaker asks for."""
    return await health(raw_request)
