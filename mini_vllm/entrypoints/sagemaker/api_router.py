"""`/ping` and `/invocations`: one door for every kind of request. Upstream twin:
`vllm/entrypoints/sagemaker/api_router.py`, which wraps them in the handlers of SageMaker's own package besides.
"""

from __future__ import annotations

import json
from typing import Any

import pydantic
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.generate.factories import get_generate_invocation_types
from mini_vllm.entrypoints.openai.utils import respond, validate_json_request
from mini_vllm.entrypoints.serve.instrumentator.health import health
from mini_vllm.entrypoints.utils import create_error_response

_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorResponse} for status in (400, 415, 500)}


def attach_router(app: FastAPI, further: list[tuple[Any, Any]] | None = None) -> None:
    """Add the routes; `further`: bodies and routes besides those that generate.

    Upstream: upstream/vllm/entrypoints/sagemaker/api_router.py:31 — `attach_router`.
    """
    router = APIRouter()
    kinds = [*get_generate_invocation_types(), *(further or ())]
    validators = [(pydantic.TypeAdapter(kind), endpoint) for kind, endpoint in kinds]
    names = [kind.__name__ for kind, _ in kinds]

    @router.post("/ping", response_class=Response)
    @router.get("/ping", response_class=Response)
    async def ping(raw_request: Request) -> Response:
        """As `/health`, under the name that SageMaker asks for."""
        return await health(raw_request)

    @router.post("/invocations", dependencies=[Depends(validate_json_request)], responses=_ERRORS)
    async def invocations(raw_request: Request) -> Response:
        """Answer by the first route whose request this body is."""
        try:
            body = await raw_request.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise HTTPException(400, f"JSON decode error: {error}") from error
        for validator, endpoint in validators:
            try:
                request = validator.validate_python(body)
            except pydantic.ValidationError:
                continue
            answer: Response = await endpoint(request, raw_request)
            return answer
        return respond(create_error_response(f"Cannot find suitable handler for request. Expected one of: {names}"))

    app.include_router(router)
