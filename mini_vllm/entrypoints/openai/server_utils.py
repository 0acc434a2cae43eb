"""Keys, request ids, and errors of the whole server. Upstream twin: `vllm/entrypoints/openai/server_utils.py`."""

from __future__ import annotations

import hashlib
import logging
import secrets
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exception_handlers import http_exception_handler as http_exception
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError
from mini_vllm.entrypoints.launcher import terminate_if_errored
from mini_vllm.entrypoints.openai.engine.protocol import ErrorInfo, ErrorResponse, GenerationError
from mini_vllm.entrypoints.utils import create_error_response, sanitize_message
from mini_vllm.exceptions import VLLMNotFoundError, VLLMValidationError
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
OPENAI_PREFIX = ("/v1", "/v2", "/inference")
OPEN_PATHS = frozenset(
    ("/health", "/ping", "/metrics", "/load", "/version", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json",
     "/tokenize", "/detokenize", "/tokenizer_info")
)  # fmt: skip
"""Paths that need no key, where the server has one: what is not named here is guarded, so that no new route lies
outside. Upstream names what is guarded, and leaves `/invocations`, `/score` and others open:
upstream/vllm/entrypoints/openai/server_utils.py:41 — `AuthenticationMiddleware`."""

EXPECTED_ERRORS = (ValueError, TypeError, OverflowError, NotImplementedError, VLLMNotFoundError, GenerationError,
                   EngineGenerateError, EngineDeadError)  # fmt: skip
"""What a request or a dead engine raises; anything else is a bug of the server."""


def path_of(scope: Scope) -> str:
    """The path of a request without the one below which a proxy shows this server."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def refusal(status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error in the form in which OpenAI's clients look for it."""
    info = ErrorInfo(message=sanitize_message(message), type=status.phrase, code=status.value)
    return JSONResponse(ErrorResponse(error=info).model_dump(), status_code=status, headers=headers)


class AuthenticationMiddleware:
    """Refuses what comes without one of the keys: 401. A comparison takes as long whatever is wrong about a key.

    Upstream: upstream/vllm/entrypoints/openai/server_utils.py:41 — `AuthenticationMiddleware`.
    """

    def __init__(self, app: ASGIApp, tokens: list[str]) -> None:
        self.app = app
        self.api_tokens = [hashlib.sha256(token.encode("utf-8")).digest() for token in tokens]

    def verify_token(self, headers: Headers) -> bool:
        """True where the header has one of the keys."""
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        digest = hashlib.sha256(given.encode("utf-8")).digest()
        found = False
        for known in self.api_tokens:
            found |= secrets.compare_digest(digest, known)
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] in ("http", "websocket") and scope.get("method") != "OPTIONS"
        if asks and path_of(scope) not in OPEN_PATHS and not self.verify_token(Headers(scope=scope)):
            await refusal(HTTPStatus.UNAUTHORIZED, "Unauthorized")(scope, receive, send)
            return
        await self.app(scope, receive, send)


class XRequestIdMiddleware:
    """Answers carry the `X-Request-Id` of their request, or a new one.

    Upstream: upstream/vllm/entrypoints/openai/server_utils.py:92 — `XRequestIdMiddleware`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        named = Headers(scope=scope).get("X-Request-Id")

        async def send_with_request_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.append("X-Request-Id", uuid.uuid4().hex if named is None else named)
            await send(message)

        await self.app(scope, receive, send_with_request_id)


class AccessLogFilter(logging.Filter):
    """Drops uvicorn's lines about these paths, with or without a query.

    Upstream: upstream/vllm/logging_utils/access_log_filter.py:15 — `UvicornAccessLogFilter`.
    """

    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        self.paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        """uvicorn's arguments: client, method, path with query, version, status."""
        args = record.args if isinstance(record.args, tuple) else ()
        return len(args) < 3 or str(args[2]).partition("?")[0] not in self.paths


async def exception_handler(request: Request, error: Exception) -> JSONResponse:
    """Any error that a route raised; the server ends where the engine is gone.

    Upstream: upstream/vllm/entrypoints/openai/server_utils.py:378 — `exception_handler`.
    """
    state = request.app.state
    if state.args.log_error_stack:
        metadata = getattr(request.state, "request_metadata", None)
        logger.error("Exception caught. Request id: %s", metadata and metadata.request_id, exc_info=error)
    terminate_if_errored(getattr(state, "server", None), state.engine_client)
    body = create_error_response(error)
    return JSONResponse(body.model_dump(), status_code=body.error.code)


async def http_exception_handler(request: Request, error: HTTPException) -> Response:
    """404 and 405 of the router, a body that cannot be read, and their like.

    Under `/v1` each has an `error`, where OpenAI's clients look; elsewhere FastAPI's `detail`, as upstream everywhere.

    Upstream: upstream/vllm/entrypoints/openai/server_utils.py:391 — `http_exception_handler`.
    """
    if not path_of(request.scope).startswith(OPENAI_PREFIX) and error.status_code in (404, 405):
        return await http_exception(request, error)
    return refusal(HTTPStatus(error.status_code), str(error.detail), error.headers)


async def validation_exception_handler(request: Request, error: RequestValidationError) -> JSONResponse:
    """A body that does not have its fields' types: 400, not FastAPI's 422.

    Upstream: upstream/vllm/entrypoints/openai/server_utils.py:409 — `validation_exception_handler`.
    """
    errors: Any = error.errors()
    causes = [each.get("ctx", {}).get("error") for each in errors if isinstance(each, dict)]
    param = next((cause.parameter for cause in causes if isinstance(cause, VLLMValidationError)), None)
    # as `str(error)`, less the last lines of FastAPI's, which tell the client in which file the route stands
    found = "".join(f"  {each}\n" for each in errors)
    said = f"{len(errors)} validation error{'s' if len(errors) != 1 else ''}:\n{found}".rstrip()
    listed = str(errors)
    message = f"{said} {listed}" if errors and listed and listed != said else said
    bad = HTTPStatus.BAD_REQUEST
    info = ErrorInfo(message=sanitize_message(message), type=bad.phrase, code=bad.value, param=param)
    return JSONResponse(ErrorResponse(error=info).model_dump(), status_code=bad)
