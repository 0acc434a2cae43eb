"""What is wrong with the server's own flags, as one sentence, before a model is loaded.

Upstream finds most of it while it starts, or when a request comes: upstream/vllm/entrypoints/openai/cli_args.py:387 —
`validate_parsed_serve_args`.
"""

from __future__ import annotations

import ssl
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from mini_vllm.utils.checks import naming, require, shown

MAX_API_SERVERS = 1024
_TEMPLATE_SIGNS = "{}\n"
_LEAST = {"max_request_body_size": 0, "max_concurrent_requests": 0, "shutdown_timeout": 0, "max_log_len": 0,
          "h11_max_incomplete_event_size": 1, "h11_max_header_count": 1}  # fmt: skip


def check_frontend_flags(args: Namespace) -> None:
    """Raise ValueError for the first flag that cannot be."""
    for name, least in _LEAST.items():
        value = getattr(args, name)
        require(value is None or value >= least, _flag(name), value, f"at least {least}")
    count = args.api_server_count
    require(1 <= count <= MAX_API_SERVERS, "--api-server-count", count, f"at least 1 and at most {MAX_API_SERVERS}")
    for name in ("api_key", "served_model_name"):
        values = getattr(args, name) or ()
        values = (values,) if isinstance(values, str) else values
        require(all(values), _flag(name), list(values), "made of texts that are not empty")
    path = args.root_path or ""
    require(not path or path.startswith("/"), "--root-path", path, "a path that begins with /")
    if args.fingerprint_value is not None and args.fingerprint_mode != "custom":
        raise ValueError("--fingerprint-value needs --fingerprint-mode custom")
    if args.chat_template is not None:
        _check_template(args.chat_template)
    _check_tls(args)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_template(given: str) -> None:
    """A text without a sign of a template is the name of a file that has to be there.

    Upstream: upstream/vllm/entrypoints/chat_utils.py:1245 — "JINJA_CHARS".
    """
    import jinja2

    from mini_vllm.entrypoints.chat_template import compiled
    from mini_vllm.entrypoints.chat_utils import read_template

    try:
        text = read_template(given)
        if text == given and not any(sign in given for sign in _TEMPLATE_SIGNS):
            raise ValueError(f"{shown(given)} is neither a file nor a template")
        compiled(text or "")
    except (ValueError, jinja2.TemplateError) as error:
        raise ValueError(f"--chat-template: {error}") from None


def _check_tls(args: Namespace) -> None:
    if bool(args.ssl_keyfile) != bool(args.ssl_certfile):
        raise ValueError("--ssl-keyfile and --ssl-certfile come together")
    kinds = [kind.value for kind in ssl.VerifyMode]
    require(args.ssl_cert_reqs in kinds, "--ssl-cert-reqs", args.ssl_cert_reqs, f"one of {kinds}")
    if not args.ssl_certfile:
        for name in ("ssl_ca_certs", "ssl_ciphers", "ssl_cert_reqs"):
            if getattr(args, name):
                raise ValueError(f"{_flag(name)} needs --ssl-keyfile and --ssl-certfile, got {getattr(args, name)!r}")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with naming("--ssl-keyfile and --ssl-certfile", f"{args.ssl_keyfile}, {args.ssl_certfile}"):
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile)
    if args.ssl_ca_certs:
        with naming("--ssl-ca-certs", args.ssl_ca_certs):
            context.load_verify_locations(args.ssl_ca_certs)
    if args.ssl_ciphers:
        with naming("--ssl-ciphers", args.ssl_ciphers):
            context.set_ciphers(args.ssl_ciphers)


def check_parsers(args: Namespace) -> None:
    """Raise ValueError for a parser whose name is not registered, or whose tokens this model's vocabulary lacks.

    For that the tokenizer is read, and no weight. Plugins have been run.
    """
    from mini_vllm.engine.arg_utils import EngineArgs
    from mini_vllm.model_loader.checkpoint import resolve_model
    from mini_vllm.parser import ParserManager

    released = args.parsers_as_released
    tool = told_by("--tool-call-parser", lambda: ParserManager.get_tool_parser(args.tool_call_parser, True, released))
    thoughts = told_by(
        "--reasoning-parser", lambda: ParserManager.get_reasoning_parser(args.reasoning_parser or None, released)
    )
    if tool is None and thoughts is None:
        return
    engine = EngineArgs.from_cli_args(args)
    _, tokenizer, _ = resolve_model(engine.model, engine.tokenizer, engine.create_engine_config())
    fit(tool, thoughts, tokenizer)


def fit(tool: Any, thoughts: Any, tokenizer: Any) -> None:
    """Raise ValueError where one of two classes of parsers, or None, finds no tokens of its own in the vocabulary."""
    if tool is not None:
        told_by("--tool-call-parser", lambda: tool(tokenizer, None))
    if thoughts is not None:
        told_by("--reasoning-parser", lambda: thoughts(tokenizer))


def told_by(flag: str, make: Callable[[], Any]) -> Any:
    """What `make` gives; what it raises, as one sentence that names the flag."""
    try:
        return make()
    except Exception as error:
        raise ValueError(f"{flag} does not fit this model: {error}") from error
