"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`: adapters while the server runs, off by default.

Whoever may call them makes the server read any folder that its user can read, and hand what is in it to all clients.
Upstream twin: `vllm/entrypoints/serve/lora/api_router.py`.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.models.lora import may_update_loras
from mini_vllm.entrypoints.openai.utils import validate_json_request
from mini_vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
router = APIRouter()


def _respond(result: ErrorResponse | str) -> Response:
    if isinstance(result, ErrorResponse):
        return JSONResponse(content=result.model_dump(), status_code=result.error.code)
    return Response(status_code=200, content=result)


@router.post("/v1/load_lora_adapter", dependencies=[Depends(validate_json_request)])
async def load_lora_adapter(request: LoadLoRAAdapterRequest, raw_request: Request) -> Response:
    """Read an adapter and serve it under a name."""
    return _respond(await raw_request.app.state.openai_serving_models.load_lora_adapter(request))


@router.post("/v1/unload_lora_adapter", dependencies=[Depends(validate_json_request)])
async def unload_lora_adapter(request: UnloadLoRAAdapterRequest, raw_request: Request) -> Response:
    """Do not answer to a name any more."""
    return _respond(await raw_request.app.state.openai_serving_models.unload_lora_adapter(request))


def attach_router(app: FastAPI) -> None:
    """Add the routes, where VLLM_ALLOW_RUNTIME_LORA_UPDATING says so."""
    if may_update_loras():
        logger.warning("adapters can be loaded and unloaded by everybody who reaches this server")
        app.include_router(router)
