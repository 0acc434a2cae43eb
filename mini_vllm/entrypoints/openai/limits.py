"""How much a client may ask of the server: headers, bytes of a body, and requests at a time.

Upstream leaves the last two to a proxy. It has a flag for the first, `--h11-max-header-count`, which sets an attribute
that uvicorn does not read (upstream/vllm/entrypoints/launcher.py:74 — "h11_max_header_count"); here it bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.entrypoints.openai.server_utils import path_of, refusal

LINGER_BYTES, LINGER_SECONDS = 1 << 20, 1.0
"""What is still read of a body that is refused. Closing a connection on which the client is writing would take the
answer away from it again."""


UNCOUNTED_POSTS = frozenset(
    ("/ping", "/reset_prefix_cache", "/reset_mm_cache", "/start_profile", "/stop_profile", "/scale_elastic_ep",
     "/is_scaling_elastic_ep")
)  # fmt: skip
"""What operators send. Every other POST counts as a request, so that no new route lies outside."""


class HeaderCountMiddleware:
    """431 for a request of more than `limit` headers."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(scope["headers"]) > self.limit:
            message = f"The request has {len(scope['headers'])} headers; at most {self.limit} are allowed."
            await refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)(scope, receive, send)
            return
        await self.app(scope, receive, send)


class BodySizeMiddleware:
    """413 for a body of more than `limit` bytes, whether or not its header says how long it is."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        said = Headers(scope=scope).get("Content-Length", "")
        if said.isdigit() and int(said) > self.limit:
            await self._refuse(scope, receive, send)
            return
        size, begun, is_whole = 0, False, False

        async def counted() -> Message:
            nonlocal size, is_whole
            message = await receive()
            size, is_whole = size + len(message.get("body", b"")), not message.get("more_body", False)
            if size > self.limit:
                raise _TooLarge
            return message

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        except _TooLarge:
            if not begun:
                await self._refuse(scope, receive, send, is_whole)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, is_whole: bool = False) -> None:
        message = f"The body of the request is larger than {self.limit} bytes."
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_linger(receive, is_whole), LINGER_SECONDS)
        response = refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, {"Connection": "close"})
        await response(scope, receive, send)


async def _linger(receive: Receive, is_whole: bool) -> None:
    """Read on to the end of a body, or as far as `LINGER_BYTES`."""
    size = 0
    while not is_whole and size < LINGER_BYTES:
        message = await receive()
        size, is_whole = size + len(message.get("body", b"")), not message.get("more_body", False)


class _TooLarge(BaseException):
    """Passes by whatever catches errors of the app."""


class ConcurrencyMiddleware:
    """429, with Retry-After, for a request while `limit` others are being answered, under whatever path."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit, self.running = app, limit, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or path_of(scope) in UNCOUNTED_POSTS:
            await self.app(scope, receive, send)
            return
        if self.running >= self.limit:
            message = f"The server answers {self.limit} requests already. Please try again later."
            response = refusal(HTTPStatus.TOO_MANY_REQUESTS, message, {"Retry-After": "1"})
            await response(scope, receive, send)
            return
        self.running += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.running -= 1
