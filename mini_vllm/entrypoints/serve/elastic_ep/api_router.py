"""`POST /scale_elastic_ep` and `/is_scaling_elastic_ep`: more or fewer replicas while the server serves.

Upstream twin: `vllm/entrypoints/serve/elastic_ep/api_router.py`. Its `ScalingMiddleware` answers 503 to everything
while the ranks deal their experts anew; here nothing is dealt, and requests are answered meanwhile.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from mini_vllm.engine.exceptions import EngineDeadError, ScalingInProgressError
from mini_vllm.entrypoints.openai.utils import validate_json_request
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
router = APIRouter()


@router.post("/scale_elastic_ep", dependencies=[Depends(validate_json_request)])
async def scale_elastic_ep(raw_request: Request) -> JSONResponse:
    """Have `new_data_parallel_size` replicas; those that leave get `drain_timeout` seconds (120) for what they have.

    400 for what cannot be, 409 while it is being done already, 500 for replicas that could not start.
    """
    try:
        body = await raw_request.json()
    except json.JSONDecodeError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "Invalid JSON format") from None
    if not isinstance(body, dict) or body.get("new_data_parallel_size") is None:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "new_data_parallel_size is required")
    size, drain_timeout = body["new_data_parallel_size"], body.get("drain_timeout", 120)
    for name, value in (("new_data_parallel_size", size), ("drain_timeout", drain_timeout)):
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} must be a positive integer")
    try:
        await raw_request.app.state.engine_client.scale_elastic_ep(size, drain_timeout)
    except ScalingInProgressError as error:
        raise HTTPException(HTTPStatus.CONFLICT, str(error)) from None
    except (ValueError, EngineDeadError):
        raise  # as of every route: 400 with its words, and the end of the server
    except Exception as error:
        logger.error("Scale failed: %s", error)
        raise HTTPException(HTTPStatus.INTERNAL_SERVER_ERROR, f"Scale failed: {error}") from error
    return JSONResponse({"message": f"Scaled to {size} data parallel engines"})


@router.post("/is_scaling_elastic_ep")
async def is_scaling_elastic_ep(raw_request: Request) -> JSONResponse:
    """Whether replicas are being added or taken away."""
    task: Any = getattr(raw_request.app.state.engine_client.core_client, "scaling", None)
    return JSONResponse({"is_scaling_elastic_ep": task is not None and not task.done()})


def attach_router(app: FastAPI) -> None:
    """Add the routes."""
    app.include_router(router)
