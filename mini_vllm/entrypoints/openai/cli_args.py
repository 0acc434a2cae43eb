"""Flags of the server. Upstream twin: `vllm/entrypoints/openai/cli_args.py`.

Names, defaults and meanings are upstream's; those of our own are marked. Flags of the engine come from `EngineArgs`.
"""

# ruff: noqa: RUF009

from __future__ import annotations

import argparse
import importlib
import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from mini_vllm.config.utils import check_kind
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.entrypoints.constants import H11_MAX_HEADER_COUNT_DEFAULT, H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT
from mini_vllm.entrypoints.openai.flag_checks import check_frontend_flags
from mini_vllm.entrypoints.openai.models.protocol import LoRAModulePath
from mini_vllm.utils.checks import shown

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


def cli_flag(default: Any, said: str, **argparse_options: Any) -> Any:
    """A field that `add_flags` makes a flag of, with what `--help` says of it."""
    metadata = {"help": said, **argparse_options}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def json_of(kind: str) -> Callable[[str], Any]:
    """What reads a flag as JSON of a kind that `check_kind` knows; argparse names the flag before what it says."""

    def read(text: str) -> Any:
        try:
            value = json.loads(text)
            check_kind("the JSON", value, kind)
        except (ValueError, RecursionError) as error:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not valid JSON of this flag ({error})") from None
        return value

    return read


class LoRAParserAction(argparse.Action):
    """`name=path`, or a JSON object of `LoRAModulePath`, each.

    Upstream: upstream/vllm/entrypoints/openai/cli_args.py:35 — `LoRAParserAction`.
    """

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        found = []
        for item in values or ():
            name, equals, path = item.partition("=")
            if equals and "," not in item:
                found.append(LoRAModulePath(name, path))
                continue
            try:
                given = json.loads(item)
            except (ValueError, RecursionError):
                parser.error(f"Invalid JSON format for --lora-modules: {item}")
            kinds = {each.name: str(each.type) for each in fields(LoRAModulePath)}
            if not isinstance(given, dict) or not {"name", "path"} <= given.keys() <= kinds.keys():
                said = f"an object with name, path and at most {', '.join([*kinds][2:])}"
                parser.error(f"Invalid fields for --lora-modules: {item} - must be {said}")
            try:
                for key, value in given.items():
                    check_kind(key, value if value is not None or "None" in kinds[key] else (), kinds[key])
            except ValueError as error:
                parser.error(f"Invalid fields for --lora-modules: {item} - {error}")
            found.append(LoRAModulePath(**given))
        setattr(namespace, self.dest, found)


_TEXTS, _OBJECT = json_of("list[str]"), json_of("dict[str, Any]")


@dataclass
class FrontendArgs:
    """Upstream: upstream/vllm/entrypoints/openai/cli_args.py:225 — `FrontendArgs`, `BaseFrontendArgs`."""

    host: str | None = cli_flag(None, "Address to listen on; all of them where unset.")
    port: int = cli_flag(8000, "Port to listen on.")
    uds: str | None = cli_flag(None, "Unix socket to listen on, instead of host and port.")
    uvicorn_log_level: str = cli_flag("info", "What uvicorn logs.", choices=LOG_LEVELS)
    disable_uvicorn_access_log: bool = cli_flag(False, "No line per request in the log.")
    disable_access_log_for_endpoints: str | None = cli_flag(
        None, "Paths without such a line, with commas between them."
    )
    allow_credentials: bool = cli_flag(False, "CORS: credentials are allowed.")
    allowed_origins: list[str] = cli_flag(["*"], "CORS: origins, as a JSON list.", type=_TEXTS)
    allowed_methods: list[str] = cli_flag(["*"], "CORS: methods, as a JSON list.", type=_TEXTS)
    allowed_headers: list[str] = cli_flag(["*"], "CORS: headers, as a JSON list.", type=_TEXTS)
    api_key: list[str] | None = cli_flag(None, "Keys, one of which computing needs (VLLM_API_KEY).", nargs="+")
    ssl_keyfile: str | None = cli_flag(None, "TLS: file of the key.")
    ssl_certfile: str | None = cli_flag(None, "TLS: file of the certificate.")
    ssl_ca_certs: str | None = cli_flag(None, "TLS: file of the authorities for clients' certificates.")
    ssl_cert_reqs: int = cli_flag(0, "TLS: 0 no client certificate, 1 optional, 2 required.")
    ssl_ciphers: str | None = cli_flag(None, "TLS: cipher suites (1.2 and older).")
    root_path: str | None = cli_flag(None, "Path below which a proxy shows this server.")
    middleware: list[str] = cli_flag([], "ASGI middleware, module.Class; may be given several times.", action="append")
    enable_request_id_headers: bool = cli_flag(False, "Answers carry X-Request-Id.")
    disable_fastapi_docs: bool = cli_flag(False, "No /docs, /redoc and /openapi.json.")
    h11_max_incomplete_event_size: int = cli_flag(H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT, "Bytes of a head to come.")
    h11_max_header_count: int = cli_flag(H11_MAX_HEADER_COUNT_DEFAULT, "Headers; more are a 431.")
    max_request_body_size: int = cli_flag(H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT, "Bytes of a body; 0: no bound. Ours.")
    max_concurrent_requests: int = cli_flag(0, "Requests at a time, further ones get 429; 0: no bound. Ours.")
    shutdown_timeout: float = cli_flag(0, "Seconds that running requests have after SIGTERM.")
    lora_modules: list[Any] | None = cli_flag(
        None, "Adapters to serve, name=path or JSON each; needs --enable-lora.", nargs="+", action=LoRAParserAction
    )
    chat_template: str | None = cli_flag(None, "A chat template, or the file of one.")
    chat_template_content_format: str = cli_flag(
        "auto", "How a template sees contents.", choices=("auto", "string", "openai")
    )
    trust_request_chat_template: bool = cli_flag(False, "Requests may bring templates.")
    default_chat_template_kwargs: dict[str, Any] | None = cli_flag(None, "Variables of it, as JSON.", type=_OBJECT)
    response_role: str = cli_flag("assistant", "The role of answers.")
    return_tokens_as_token_ids: bool = cli_flag(False, "Tokens in logprobs as 'token_id:N'.")
    enable_auto_tool_choice: bool = cli_flag(False, "The model may choose to call tools.")
    exclude_tools_when_tool_choice_none: bool = cli_flag(False, "tool_choice='none' hides the tools from the model.")
    tool_call_parser: str | None = cli_flag(None, "How this model writes tool calls.")
    tool_parser_plugin: str = cli_flag("", "A file that registers further tool parsers.")
    reasoning_parser: str = cli_flag("", "How this model marks its thinking.")
    reasoning_parser_plugin: str = cli_flag("", "A file that registers further reasoning parsers.")
    parsers_as_released: bool = cli_flag(False, "Parsers as vLLM 0.22.1's, also where they break a client. Ours.")
    max_log_len: int | None = cli_flag(None, "Characters and ids of a prompt that are logged.")
    enable_prompt_tokens_details: bool = cli_flag(False, "Usage says how many prompt tokens were cached.")
    enable_server_load_tracking: bool = cli_flag(False, "/load counts requests.")
    enable_force_include_usage: bool = cli_flag(False, "Every stream has its usage.")
    enable_tokenizer_info_endpoint: bool = cli_flag(False, "/tokenizer_info is there.")
    enable_log_requests: bool = cli_flag(False, "Log requests (prompts at debug level).")
    enable_log_outputs: bool = cli_flag(False, "Log answers; needs --enable-log-requests.")
    enable_log_deltas: bool = cli_flag(True, "Of a stream, log its pieces too.")
    log_error_stack: bool = cli_flag(False, "Log tracebacks of errors.")
    otlp_traces_endpoint: str | None = cli_flag(None, "Collector of OpenTelemetry that gets a span a request.")
    profiler_config: dict[str, Any] | None = cli_flag(
        None, "Routes for profiles, as JSON: profiler 'torch', torch_profiler_dir where traces go."
    )
    fingerprint_mode: str = cli_flag("full", "What system_fingerprint is.", choices=("full", "hash", "custom", "none"))
    fingerprint_value: str | None = cli_flag(None, "The fingerprint of --fingerprint-mode custom.")


def add_flags(group: argparse._ActionsContainer, owner: Any) -> None:
    """The fields of a dataclass as flags, of the types that they have."""
    for each in fields(owner):
        default = each.default if each.default is not MISSING else each.default_factory()  # type: ignore
        options: dict[str, Any] = {"default": default, **each.metadata}
        if str(each.type) == "bool":
            options["action"] = argparse.BooleanOptionalAction
        elif "type" not in options and "action" not in options and "choices" not in options:
            options["type"] = next((kind for kind in (int, float) if str(each.type).startswith(kind.__name__)), str)
        group.add_argument("--" + each.name.replace("_", "-"), **options)


def find_middleware(name: str) -> Any:
    """What `--middleware` names. Raises ValueError where there is no such thing, or where it is no middleware."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"--middleware must be module.name of what can be imported, got {name!r}: {error}") from None
    if not (inspect.isclass(found) or inspect.iscoroutinefunction(found)):
        raise ValueError(f"--middleware must be a coroutine function or a class, got {name!r}")
    return found


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add all flags of `mini-vllm serve`.

    Upstream: upstream/vllm/entrypoints/openai/cli_args.py:340 — `make_arg_parser`.
    """
    parser.add_argument("model_tag", nargs="?", help="Folder or hub name; by default the repository's checkpoint.")
    parser.add_argument("--config", help="YAML file of flags; those of the command line win.")
    parser.add_argument("--headless", action="store_true", help="Ranks of another node: --nnodes, --node-rank.")
    parser.add_argument("--api-server-count", "-asc", type=int, default=1, help="Processes for HTTP.")
    parser.add_argument("--grpc", action="store_true", help="Refused: HTTP is what is served.")
    add_flags(parser.add_argument_group("Frontend"), FrontendArgs)
    EngineArgs.add_cli_args(parser.add_argument_group("Engine"))  # type: ignore[arg-type]
    return parser


def validate_parsed_serve_args(args: argparse.Namespace) -> None:
    """Raise, before anything is loaded, for flags that contradict each other or are not served.

    Upstream: upstream/vllm/entrypoints/openai/cli_args.py:387 — `validate_parsed_serve_args`.
    """
    if args.grpc:
        raise ValueError("--grpc is refused: mini_vllm serves HTTP alone (vLLM's gRPC server is a package of its own)")
    if args.headless and args.api_server_count > 1:
        raise ValueError(f"--api-server-count is of a server, and --headless is none; got {args.api_server_count}")
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    if args.enable_log_outputs and not args.enable_log_requests:
        raise TypeError("Error: --enable-log-outputs requires --enable-log-requests")
    if args.otlp_traces_endpoint:
        from mini_vllm.tracing.otel import require_otel

        require_otel(args.otlp_traces_endpoint).shutdown()
    if isinstance(args.profiler_config, str):
        from mini_vllm.entrypoints.serve.profile.api_router import validate_profiler_config

        args.profiler_config = validate_profiler_config(args.profiler_config)
    for name in args.middleware:
        find_middleware(name)
    if args.lora_modules and not args.enable_lora:
        raise ValueError("--lora-modules needs --enable-lora")
    check_frontend_flags(args)
