"""What the routes under `/v1` share. Upstream twin: `vllm/entrypoints/openai/utils.py`."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.openai.own_words import refuse_half_surrogates
from mini_vllm.entrypoints.utils import EventStreamResponse

ERRORS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}},
    **{status: {"model": ErrorResponse} for status in (400, 404, 500)},
}
"""What `/openapi.json` says of a route's answers."""


async def validate_json_request(raw_request: Request) -> None:
    """Raise RequestValidationError for a body that does not say that it is JSON, ValueError for one with a text that no
    answer could repeat.

    Upstream: upstream/vllm/entrypoints/openai/utils.py:43 — `validate_json_request`.
    """
    media_type = raw_request.headers.get("content-type", "").lower().split(";", maxsplit=1)[0]
    if media_type != "application/json":
        raise RequestValidationError(errors=["Unsupported Media Type: Only 'application/json' is allowed"])
    refuse_half_surrogates(await raw_request.body())


def respond(result: Any) -> Response:
    """An error, a whole answer, or a stream of events, as a response."""
    if isinstance(result, ErrorResponse):
        return JSONResponse(result.model_dump(), status_code=result.error.code)
    if hasattr(result, "model_dump"):
        return JSONResponse(result.model_dump())
    return EventStreamResponse(result)
