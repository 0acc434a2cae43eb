"""The proxy's server: routes, limits, and its start.

Upstream: upstream/tests/v1/kv_connector/nixl_integration/toy_proxy_server.py:265 — `handle_completions`, and
upstream/examples/disaggregated/disaggregated_serving/disagg_proxy_demo.py:45 — `Proxy`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Body, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from mini_vllm.entrypoints.disagg_proxy.exchange import Answer, InstanceError, error_answer
from mini_vllm.entrypoints.disagg_proxy.instances import Instances, parse_url, watch_health
from mini_vllm.entrypoints.disagg_proxy.serving import DisaggProxy, EngineStream, ProxyPolicy, nobody
from mini_vllm.entrypoints.openai.api_server import create_server_socket
from mini_vllm.entrypoints.openai.limits import BodySizeMiddleware, ConcurrencyMiddleware
from mini_vllm.entrypoints.openai.server_utils import http_exception_handler, validation_exception_handler
from mini_vllm.entrypoints.openai.utils import validate_json_request
from mini_vllm.entrypoints.utils import EventStreamResponse, with_cancellation
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
PASSED_ON = ("authorization", "traceparent", "tracestate")
"""Headers of a request that both engines get; besides, its X-Request-Id, or one that is made for it."""


def build_app(args: argparse.Namespace, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The proxy's app; `transport`: in the place of the network, for all engines."""
    app = FastAPI(lifespan=_lifespan, openapi_url=None)
    urls = {role: [parse_url(f"--{role}", url) for url in getattr(args, role)] for role in ("prefill", "decode")}
    prefill, decode = (Instances(role, urls[role], args.routing, transport) for role in ("prefill", "decode"))
    policy = ProxyPolicy(
        args.max_attempts, args.prefill_failure_policy, args.prefill_timeout, args.decode_timeout, args.min_prompt_chars
    )
    app.state.proxy, app.state.args = DisaggProxy(prefill, decode, policy), args
    app.exception_handler(HTTPException)(http_exception_handler)
    app.exception_handler(RequestValidationError)(validation_exception_handler)
    if args.max_concurrent_requests:
        app.add_middleware(ConcurrencyMiddleware, limit=args.max_concurrent_requests)
    if args.max_request_body_size:
        app.add_middleware(BodySizeMiddleware, limit=args.max_request_body_size)
    _add_routes(app)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The health of the engines is watched as long as the server runs."""
    proxy, args = app.state.proxy, app.state.args
    instances = [*proxy.prefill.all, *proxy.decode.all]
    watch = asyncio.create_task(watch_health(instances, args.health_interval, args.health_timeout))
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        for each in instances:
            await each.client.aclose()


def _add_routes(app: FastAPI) -> None:
    proxy: DisaggProxy = app.state.proxy

    def add(path: str) -> None:
        @app.post(path, dependencies=[Depends(validate_json_request)])
        @with_cancellation
        async def create(body: Annotated[Any, Body()], raw_request: Request) -> Response:
            return respond(await answer(proxy, path, body, raw_request))

    add("/v1/completions")
    add("/v1/chat/completions")

    @app.get("/v1/models")
    async def models() -> Response:
        """A decode engine's."""
        instance = proxy.decode.choose()
        try:
            if instance is None:
                raise nobody(proxy.decode)
            found = await instance.client.get("/v1/models", timeout=app.state.args.health_timeout)
            return respond(Answer.of(found, found.content))
        except httpx.HTTPError as error:
            return respond(error_answer(f"{type(error).__name__}: {error}", HTTPStatus.BAD_GATEWAY))
        except InstanceError as error:
            return respond(error.as_answer())

    @app.get("/health")
    async def health() -> Response:
        """200 while requests can be answered: one decode engine is enough."""
        return Response(status_code=200 if proxy.decode.num_up else 503)

    @app.get("/healthcheck")
    async def healthcheck() -> dict[str, Any]:
        """As upstream's: how many engines of each kind there are; here those that are up."""
        status = "ok" if proxy.decode.num_up else "down"
        return {"status": status, "prefill_instances": proxy.prefill.num_up, "decode_instances": proxy.decode.num_up}

    @app.get("/status")
    async def status() -> Response:
        """Each engine, and which ways the requests took."""
        instances = [each.status() for each in (*proxy.prefill.all, *proxy.decode.all)]
        return JSONResponse({"instances": instances, "ways": dict(proxy.ways)})


async def answer(proxy: DisaggProxy, path: str, body: Any, raw_request: Request) -> Answer | EngineStream:
    """What the pair says, or what is wrong with the request."""
    if not isinstance(body, dict):
        return error_answer("Input should be a valid dictionary or object to extract fields from", _BAD)
    if body.get("kv_transfer_params") is not None:
        return error_answer("kv_transfer_params is what the proxy sets: a client must leave it out", _BAD)
    given = raw_request.headers
    headers = {name: given[name] for name in PASSED_ON if name in given}
    headers["x-request-id"] = given.get("x-request-id") or uuid.uuid4().hex
    headers["content-type"], headers["accept-encoding"] = "application/json", "identity"
    return await proxy.answer(path, body, headers)


_BAD = HTTPStatus.BAD_REQUEST


def respond(found: Answer | EngineStream) -> Response:
    """To the client."""
    if isinstance(found, EngineStream):
        return EventStreamResponse(found)
    headers = {} if found.retry_after is None else {"Retry-After": found.retry_after}
    return Response(found.content, found.status, headers, found.media_type or None)


def run_proxy(args: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    sock = create_server_socket(args.host, args.port)
    host, port = sock.getsockname()[:2]
    logger.info("Starting the proxy on http://%s:%d", host, port)
    config = uvicorn.Config(
        build_app(args), http="h11", ws="none", log_level=args.uvicorn_log_level,
        access_log=not args.disable_uvicorn_access_log, timeout_graceful_shutdown=round(args.shutdown_timeout) or None,
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=[sock])
    finally:
        sock.close()
