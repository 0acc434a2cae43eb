"""The app: routes, middleware, and the objects that serve. Upstream twin: `vllm/entrypoints/openai/api_server.py`."""

from __future__ import annotations

import inspect
import logging
import os
import socket
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.datastructures import State
from starlette.exceptions import HTTPException

from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.entrypoints.launcher import serve_http
from mini_vllm.entrypoints.logger import RequestLogger
from mini_vllm.entrypoints.openai.cli_args import find_middleware
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.serving import ServingOptions
from mini_vllm.entrypoints.openai.fingerprint import build_system_fingerprint
from mini_vllm.entrypoints.openai.flag_checks import check_parsers
from mini_vllm.entrypoints.openai.models.protocol import BaseModelPath
from mini_vllm.entrypoints.openai.models.serving import OpenAIServingModels
from mini_vllm.entrypoints.openai.server_utils import (
    EXPECTED_ERRORS,
    AccessLogFilter,
    AuthenticationMiddleware,
    XRequestIdMiddleware,
    exception_handler,
    http_exception_handler,
    validation_exception_handler,
)
from mini_vllm.entrypoints.serve import register_vllm_serve_api_routers
from mini_vllm.entrypoints.serve.render.serving import OpenAIServingRender
from mini_vllm.entrypoints.serve.tokenize.serving import OpenAIServingTokenization
from mini_vllm.logger import init_logger
from mini_vllm.reasoning import ReasoningParserManager
from mini_vllm.renderers.base import BaseRenderer
from mini_vllm.tool_parsers import ToolParserManager
from mini_vllm.tracing.otel import init_otel_tracer
from mini_vllm.utils.checks import naming, require

logger = init_logger(__name__)


@asynccontextmanager
async def build_async_engine_client(args: Namespace) -> AsyncIterator[AsyncLLM]:
    """An engine for these flags, ended behind the block.

    Its core has a process of its own unless VLLM_ENABLE_V1_MULTIPROCESSING is 0.
    Upstream: upstream/vllm/entrypoints/openai/api_server.py:78 — `build_async_engine_client`.
    """
    apart = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") != "0"
    engine = AsyncLLM.from_engine_args(EngineArgs.from_cli_args(args), enable_multiprocessing=apart)
    try:
        yield engine
    finally:
        engine.shutdown()


def build_app(args: Namespace) -> FastAPI:
    """All routes and middleware; `init_app_state` makes what they call.

    Upstream: upstream/vllm/entrypoints/openai/api_server.py:157 — `build_app`.
    """
    from mini_vllm.entrypoints.openai.generate.api_router import register_generate_api_routers
    from mini_vllm.entrypoints.openai.models.api_router import attach_router as attach_models_router
    from mini_vllm.entrypoints.sagemaker.api_router import attach_router as attach_sagemaker_router

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None) if args.disable_fastapi_docs else FastAPI()
    app.state.app, app.state.args = app, args
    register_vllm_serve_api_routers(app)
    attach_sagemaker_router(app)
    attach_models_router(app)
    register_generate_api_routers(app)
    app.root_path = args.root_path or ""
    app.exception_handler(HTTPException)(http_exception_handler)
    app.exception_handler(RequestValidationError)(validation_exception_handler)
    for kind in EXPECTED_ERRORS:
        app.exception_handler(kind)(exception_handler)
    app.exception_handler(Exception)(exception_handler)  # a bug: its traceback is logged, too
    _add_middleware(app, args)
    return app


def _add_middleware(app: FastAPI, args: Namespace) -> None:
    """The last one added sees a request first."""
    from mini_vllm.entrypoints.openai.limits import BodySizeMiddleware, ConcurrencyMiddleware, HeaderCountMiddleware
    from mini_vllm.metrics.http import HTTPMetrics, HTTPMetricsMiddleware

    app.state.http_metrics = HTTPMetrics()
    if args.max_concurrent_requests:
        app.add_middleware(ConcurrencyMiddleware, limit=args.max_concurrent_requests)
    if args.max_request_body_size:
        app.add_middleware(BodySizeMiddleware, limit=args.max_request_body_size)
    app.add_middleware(HeaderCountMiddleware, limit=args.h11_max_header_count)
    app.add_middleware(HTTPMetricsMiddleware, metrics=app.state.http_metrics)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=args.allowed_origins,
        allow_credentials=args.allow_credentials,
        allow_methods=args.allowed_methods,
        allow_headers=args.allowed_headers,
    )
    tokens = [key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key]
    if tokens:
        app.add_middleware(AuthenticationMiddleware, tokens=tokens)
    if args.enable_request_id_headers:
        app.add_middleware(XRequestIdMiddleware)
    for name in args.middleware:
        found = find_middleware(name)
        if inspect.isclass(found):
            app.add_middleware(found)  # type: ignore[arg-type]
        else:
            app.middleware("http")(found)


def init_app_state(engine_client: AsyncLLM, state: State, args: Namespace) -> None:
    """The serving objects. Raises what is wrong with parsers or templates that the flags name.

    Upstream: upstream/vllm/entrypoints/openai/api_server.py:310 — `init_app_state`.
    """
    from mini_vllm.entrypoints.openai.generate.api_router import init_generate_state

    if args.otlp_traces_endpoint:
        engine_client.output_processor.tracer = init_otel_tracer("vllm.llm_engine", args.otlp_traces_endpoint)
    options = _options(engine_client, args)
    request_logger = RequestLogger(max_log_len=args.max_log_len) if args.enable_log_requests else None
    names = args.served_model_name or [args.model]
    names = [names] if isinstance(names, str) else list(names)
    state.engine_client, state.args = engine_client, args
    state.openai_serving_models = OpenAIServingModels(
        [BaseModelPath(name, args.model) for name in names], engine_client.max_model_len, engine_client,
        args.lora_modules,
    )  # fmt: skip
    multimodal = engine_client.input_processor.multimodal
    renderer = BaseRenderer(engine_client.tokenizer, engine_client.folder, multimodal, names[0])
    parsers = Parsers(options, engine_client.tokenizer)
    render = OpenAIServingRender(renderer, options, parsers, engine_client.max_model_len)
    state.openai_serving_render = render
    common = (engine_client, state.openai_serving_models, renderer, options, request_logger)
    state.openai_serving_tokenization = OpenAIServingTokenization(*common)
    state.openai_serving_tokenization.openai_serving_render = render
    init_generate_state(state, common, render, parsers)
    if engine_client.config.runner_type == "pooling":
        from mini_vllm.entrypoints.pooling.factories import attach_pooling

        attach_pooling(getattr(state, "app", None), engine_client, state, common)
    state.enable_server_load_tracking = args.enable_server_load_tracking
    state.server_load_metrics = 0


def _options(engine_client: AsyncLLM, args: Namespace) -> ServingOptions:
    from mini_vllm.entrypoints.chat_utils import read_template

    return ServingOptions(
        response_role=args.response_role,
        chat_template=read_template(args.chat_template),
        chat_template_content_format=args.chat_template_content_format,
        default_chat_template_kwargs=args.default_chat_template_kwargs or {},
        trust_request_chat_template=args.trust_request_chat_template,
        return_tokens_as_token_ids=args.return_tokens_as_token_ids,
        enable_auto_tools=args.enable_auto_tool_choice,
        exclude_tools_when_tool_choice_none=args.exclude_tools_when_tool_choice_none,
        tool_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser or None,
        parsers_as_released=args.parsers_as_released,
        enable_prompt_tokens_details=args.enable_prompt_tokens_details,
        enable_force_include_usage=args.enable_force_include_usage,
        enable_log_outputs=args.enable_log_outputs,
        enable_log_deltas=args.enable_log_deltas,
        system_fingerprint=build_system_fingerprint(
            engine_client.config, args.fingerprint_mode, args.fingerprint_value
        ),
    )


def create_server_socket(host: str | None, port: int) -> socket.socket:
    """A bound socket: a port that is taken is found before the model is loaded.

    Upstream: upstream/vllm/entrypoints/openai/api_server.py:497 — `create_server_socket`.
    """
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    sock = socket.socket(family=family, type=socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    require(0 <= port < 1 << 16, "--port", port, "0 to 65535")
    with naming("--host and --port", f"{host or ''}:{port}"):
        sock.bind((host or "", port))
    return sock


def import_parser_plugins(args: Namespace) -> None:
    """Run the files of the user's parsers."""
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)


def setup_server(args: Namespace) -> tuple[str, socket.socket]:
    """The address as text, and its socket. Runs the user's parsers first; raises ValueError where they cannot be, or
    where a parser does not fit the model.

    Upstream: upstream/vllm/entrypoints/openai/api_server.py:535 — `setup_server`.
    """
    import_parser_plugins(args)
    check_parsers(args)
    if args.uds:
        sock = socket.socket(family=socket.AF_UNIX, type=socket.SOCK_STREAM)
        with naming("--uds", args.uds):
            sock.bind(args.uds)
        return f"unix:{args.uds}", sock
    sock = create_server_socket(args.host, args.port)
    host = f"[{args.host}]" if args.host and ":" in args.host else args.host or "0.0.0.0"
    return f"http{'s' if args.ssl_certfile else ''}://{host}:{sock.getsockname()[1]}", sock


async def run_server(args: Namespace, **uvicorn_kwargs: Any) -> None:
    """Bind, load, serve until a signal comes.

    Upstream: upstream/vllm/entrypoints/openai/api_server.py:665 — `run_server`.
    """
    listen_address, sock = setup_server(args)
    try:
        async with build_async_engine_client(args) as engine_client:
            await serve_engine(engine_client, args, listen_address, sock, **uvicorn_kwargs)
    finally:
        close_server_socket(args, sock)


async def serve_engine(
    engine_client: AsyncLLM,
    args: Namespace,
    listen_address: str,
    sock: socket.socket,
    prepare: Callable[[FastAPI], None] | None = None,
    **uvicorn_kwargs: Any,
) -> None:
    """An app for this engine, served until a signal comes; `prepare` gets it before.

    Upstream: upstream/vllm/entrypoints/openai/api_server.py:572 — `build_and_serve`.
    """
    app = build_app(args)
    init_app_state(engine_client, app.state, args)
    await app.state.openai_serving_models.init_static_loras()
    if prepare is not None:
        prepare(app)
    logger.info("Starting mini_vllm server on %s", listen_address)
    await serve_http(app, sock, args.shutdown_timeout, **_uvicorn_options(args), **uvicorn_kwargs)


def close_server_socket(args: Namespace, sock: socket.socket) -> None:
    """Close it; a Unix socket leaves no file."""
    sock.close()
    if args.uds and os.path.exists(args.uds):
        os.unlink(args.uds)


def _uvicorn_options(args: Namespace) -> dict[str, Any]:
    hidden = [path.strip() for path in (args.disable_access_log_for_endpoints or "").split(",") if path.strip()]
    if hidden:
        logging.getLogger("uvicorn.access").addFilter(AccessLogFilter(hidden))
    same = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers",
            "h11_max_incomplete_event_size")  # fmt: skip
    return {
        **{name: getattr(args, name) for name in same if getattr(args, name) is not None},
        "http": "h11",  # whose bounds the flags set
        "ws": "none",
        "lifespan": "off",
        "log_level": args.uvicorn_log_level,
        "access_log": not args.disable_uvicorn_access_log,
        "timeout_keep_alive": int(os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5")),
    }
