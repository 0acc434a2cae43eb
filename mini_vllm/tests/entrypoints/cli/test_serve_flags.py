"""Every flag of `mini-vllm serve`: nonsense ends as one sentence before a core is made, and a named test shows what the
flag does. A flag without a row here is red."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from mini_vllm.engine import front_end
from mini_vllm.entrypoints.cli.common import USAGE_ERRORS
from mini_vllm.entrypoints.cli.serve import parse_serve_args
from mini_vllm.entrypoints.openai import api_server
from mini_vllm.entrypoints.openai.cli_args import FrontendArgs, make_arg_parser

TESTS = Path(__file__).resolve().parents[2]
NONSENSE = ("nonsense!", "-7", "{")
ANY_TEXT = {
    "--uds", "--disable-access-log-for-endpoints", "--api-key", "--response-role", "--served-model-name",
    "--revision", "--download-dir", "--model", "--tokenizer", "--with-labs", "--master-addr",
}  # fmt: skip
"""A text that may be anything, or that only a model on disk or another machine could refute; these have tests of their
own."""
TAKEN = {"--seed": (), "--chat-template": ("{",), "--allowed-media-domains": (), "--hf-token": NONSENSE}
"""Values of NONSENSE that mean something to the flag."""
EMPTY = ("--api-key", "--served-model-name")
ARGUMENTS_ASIDE = {"--max-log-len": ["--enable-log-requests"]}
CLI, OPENAI = "entrypoints/cli/test_serve_flags.py", "entrypoints/openai/"
DOCUMENTED = OPENAI + "test_documented_calls.py"
FLAGS, PROCESS = OPENAI + "test_server_flags.py", OPENAI + "test_process.py"
EFFECTS, CALLS = OPENAI + "test_flag_effects.py", OPENAI + "test_tool_calls.py"
EFFECT = {
    "host": (PROCESS, "process"), "port": (PROCESS, "test_a_port_that_is_taken_is_named_before_the_model_is_loaded"),
    "uds": (PROCESS, "test_a_unix_socket"), "uvicorn_log_level": (EFFECTS, "test_what_is_logged_by_uvicorn"),
    "disable_uvicorn_access_log": (EFFECTS, "test_what_is_logged_by_uvicorn"),
    "disable_access_log_for_endpoints": (EFFECTS, "test_what_is_logged_by_uvicorn"),
    "allow_credentials": (EFFECTS, "test_cross_origin_answers"),
    "allowed_origins": (FLAGS, "test_cors"), "allowed_methods": (EFFECTS, "test_cross_origin_answers"),
    "allowed_headers": (EFFECTS, "test_cross_origin_answers"),
    "api_key": (FLAGS, "test_without_a_key_nothing_under_v1"),
    "ssl_keyfile": (PROCESS, "test_tls"), "ssl_certfile": (PROCESS, "test_tls"),
    "ssl_ca_certs": (EFFECTS, "test_clients_certificates"), "ssl_cert_reqs": (EFFECTS, "test_clients_certificates"),
    "ssl_ciphers": (EFFECTS, "test_clients_certificates"), "root_path": (EFFECTS, "test_below_a_proxys_path"),
    "middleware": (EFFECTS, "test_a_middleware_of_the_users"),
    "enable_request_id_headers": (FLAGS, "test_request_ids"),
    "disable_fastapi_docs": (EFFECTS, "test_no_documentation"),
    "h11_max_incomplete_event_size": (EFFECTS, "test_a_head_of_too_many_bytes"),
    "h11_max_header_count": (OPENAI + "test_refusals.py", "test_headers_beyond_the_count_are_refused"),
    "max_request_body_size": (FLAGS, "test_a_body_that_is_too_large"),
    "max_concurrent_requests": (OPENAI + "test_refusals.py", "test_whatever_computes_is_counted_and_needs_a_key"),
    "shutdown_timeout": (FLAGS, "test_the_end_of_a_server"), "lora_modules": (OPENAI + "test_lora_server.py", "test_"),
    "chat_template": (EFFECTS, "test_templates"), "chat_template_content_format": (EFFECTS, "test_templates"),
    "trust_request_chat_template": (EFFECTS, "test_templates"),
    "default_chat_template_kwargs": (EFFECTS, "test_templates"), "response_role": (EFFECTS, "test_templates"),
    "return_tokens_as_token_ids": (EFFECTS, "test_what_answers_have_besides"),
    "enable_auto_tool_choice": (DOCUMENTED, "test_where_nothing_fits_the_answer_is_text"),
    "tool_call_parser": (DOCUMENTED, "test_a_call_of_the_model_is_a_call_for_the_client"),
    "exclude_tools_when_tool_choice_none": (EFFECTS, "test_templates"),
    "tool_parser_plugin": (CALLS, "test_thoughts_and_calls"), "reasoning_parser": (CALLS, "test_thoughts_and_calls"),
    "reasoning_parser_plugin": (EFFECTS, "test_a_plugin_of_thoughts"),
    "parsers_as_released": (CALLS, "test_as_the_real_server_with_parsers_as_released"),
    "max_log_len": (EFFECTS, "test_what_is_logged_of_requests"),
    "enable_prompt_tokens_details": (EFFECTS, "test_what_answers_have_besides"),
    "enable_server_load_tracking": (EFFECTS, "test_what_answers_have_besides"),
    "enable_force_include_usage": (EFFECTS, "test_what_answers_have_besides"),
    "enable_tokenizer_info_endpoint": (EFFECTS, "test_what_answers_have_besides"),
    "enable_log_requests": (EFFECTS, "test_what_is_logged_of_requests"),
    "enable_log_outputs": (EFFECTS, "test_what_is_logged_of_requests"),
    "enable_log_deltas": (EFFECTS, "test_what_is_logged_of_requests"),
    "log_error_stack": (EFFECTS, "test_what_is_logged_of_requests"),
    "otlp_traces_endpoint": ("tracing/test_otel.py", "test_"),
    "fingerprint_mode": (FLAGS, "test_names_and_fingerprint"),
    "profiler_config": (OPENAI + "test_responses_store.py", "test_"),
    "fingerprint_value": (FLAGS, "test_names_and_fingerprint"),
}  # fmt: skip
"""Flag of the server to (file, test or fixture) that shows its effect; flags of the engine: `test_arg_effects.py`."""


class Reached(BaseException):
    """A core would be made now."""


@pytest.fixture
def no_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reached(*_: object, **__: object) -> None:
        raise Reached

    monkeypatch.setattr(front_end, "_make_mp_client", reached)
    monkeypatch.setattr(front_end, "EngineCore", reached)
    monkeypatch.chdir(tmp_path)


def valued() -> list[str]:
    """Flags that take a value."""
    parser = make_arg_parser(argparse.ArgumentParser())
    switches = (argparse.BooleanOptionalAction, argparse._StoreTrueAction, argparse._HelpAction)
    return [a.option_strings[0] for a in parser._actions if a.option_strings and not isinstance(a, switches)]


def said(*words: str) -> str:
    """What the command says of these words before it makes a core."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            args = parse_serve_args(["toy", "--port", "0", "--host", "127.0.0.1", *words])
            asyncio.run(api_server.run_server(args))
    except SystemExit as ended:
        assert ended.code == 2
        return told.getvalue().strip().splitlines()[-1]
    except USAGE_ERRORS as error:  # which the command prints as "error: …", and ends with 2
        return str(error)
    raise AssertionError("served")


@pytest.mark.parametrize("flag", [flag for flag in valued() if flag not in ANY_TEXT])
def test_nonsense_is_a_sentence_that_names_the_flag(no_core: None, flag: str) -> None:
    for value in [value for value in NONSENSE if value not in TAKEN.get(flag, ())]:
        sentence = said(*ARGUMENTS_ASIDE.get(flag, []), f"{flag}={value}")
        names = {flag, flag[2:].replace("-", "_"), flag[2:].replace("-", " ").replace("plugin", "").strip() + " plugin"}
        assert any(name in sentence for name in names), (flag, value, sentence)
        assert "\n" not in sentence and "__init__" not in sentence and "Traceback" not in sentence


@pytest.mark.parametrize("flag", EMPTY)
def test_an_empty_text_is_no_key_and_no_name(no_core: None, flag: str) -> None:
    assert said(flag, "") == f"{flag} must be made of texts that are not empty, got ['']."


@pytest.mark.parametrize(("words", "sentence"), [
    (["--api-server-count", "99999999"], "--api-server-count must be at least 1 and at most 1024"),
    (["--ssl-ciphers", "nonsense"], "--ssl-ciphers needs --ssl-keyfile and --ssl-certfile"),
    (["--ssl-keyfile", "no.pem", "--ssl-certfile", "no.pem"], "--ssl-keyfile and --ssl-certfile 'no.pem,"),
    (["--chat-template", "{% if %}"], "--chat-template: "),
    (["--chat-template", "no_such.jinja"], "--chat-template: "),
    (["--middleware", "json.loads"], "--middleware must be a coroutine function or a class, got 'json.loads'"),
    (["--fingerprint-value", "x"], "--fingerprint-value needs --fingerprint-mode custom"),
    (["--tool-call-parser", "no_such"], "--tool-call-parser does not fit this model: .*no_such.*not been registered"),
    (["--tool-call-parser", "mistral"], r"--tool-call-parser does not fit .*could not locate \[TOOL_CALLS\]"),
    (["--reasoning-parser", "qwen3"], "--reasoning-parser does not fit .*could not locate .*<think>"),
])  # fmt: skip
def test_what_contradicts_the_rest_is_said_before_a_core_is_made(
    no_core: None, words: list[str], sentence: str
) -> None:
    assert re.match(sentence, said(*words)), said(*words)


def test_every_flag_of_the_server_has_a_named_test_of_its_effect() -> None:
    assert sorted(EFFECT) == sorted(each.name for each in fields(FrontendArgs))
    for name, (file, test) in EFFECT.items():
        text = (TESTS / file).read_text(encoding="utf-8")
        assert f"def {test}" in text and (name.replace("_", "-") in text or name in text), (name, file, test)
