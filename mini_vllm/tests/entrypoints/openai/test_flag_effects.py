"""What flags of the server do that no other test is about: each is seen from outside, with the flag and without it."""

import logging
import shutil
import socket
import ssl
import subprocess

import pytest

from mini_vllm.tests.entrypoints.openai.servers import WAIT_S, Server, events

pytest.importorskip("prometheus_client", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs the extra serve")

SHORT = {"prompt": "hello", "max_tokens": 2, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
TOOLS = [{"type": "function", "function": {"name": "get_weather"}}]


class Stamp:
    """A middleware of somebody's."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def stamped(message):
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-stamp", b"mine"))
            await send(message)

        await self.app(scope, receive, stamped)


def tokens(client, **more):
    """The text that the server's template makes of a conversation."""
    body = {"messages": CHAT["messages"], "add_generation_prompt": False, **more}
    answer = client.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    return bytes(answer.json()["tokens"]).decode()


def test_templates(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("<{{ mood }}>{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | length if tools }}")
    kwargs = '{"mood": "calm"}'
    flags = ["--chat-template", str(file), "--default-chat-template-kwargs", kwargs, "--trust-request-chat-template"]
    flags += ["--response-role", "bot", "--exclude-tools-when-tool-choice-none"]
    with Server("toy", *flags, "--chat-template-content-format", "openai") as server, server.client() as client:
        assert tokens(client) == "<calm>[{'type': 'text', 'text': 'hi'}]"
        assert tokens(client, chat_template=PLAIN + "!").endswith("]!")
        answer = client.post("/v1/chat/completions", json=CHAT).json()
        assert answer["choices"][0]["message"]["role"] == "bot"
        counts = [
            client.post("/v1/chat/completions", json={**CHAT, **more}).json()["usage"]["prompt_tokens"]
            for more in ({}, {"tools": TOOLS, "tool_choice": "none"})
        ]
        assert counts[0] == counts[1], "the model does not see the tools"
    flags = ["--chat-template", str(file), "--default-chat-template-kwargs", kwargs]
    with Server("toy", *flags) as server, server.client() as client:
        assert tokens(client) == "<calm>hi"
        assert client.post("/tokenize", json={**CHAT, "chat_template": PLAIN}).status_code == 400
        answer = client.post("/v1/chat/completions", json={**CHAT, "tools": TOOLS, "tool_choice": "none"}).json()
        assert answer["usage"]["prompt_tokens"] == counts[0] - len("[{'type': 'text', 'text': 'hi'}]") + len("hi") + 1
        assert answer["choices"][0]["message"]["role"] == "assistant"


def test_cross_origin_answers():
    flags = ["--allow-credentials", "--allowed-methods", '["POST"]', "--allowed-headers", '["x-a"]']
    asked = {"Origin": "http://a.b", "Access-Control-Request-Method": "POST"}
    with Server("toy", *flags) as server, server.client() as client:
        answer = client.options("/v1/completions", headers={**asked, "Access-Control-Request-Headers": "x-a"})
        assert answer.status_code == 200 and answer.headers["access-control-allow-credentials"] == "true"
        assert (
            client.options("/v1/models", headers={**asked, "Access-Control-Request-Method": "PUT"}).status_code == 400
        )
        refused = client.options("/v1/completions", headers={**asked, "Access-Control-Request-Headers": "x-b"})
        assert refused.status_code == 400
        error = client.post("/v1/completions", json={"prompt": ""}, headers={"Origin": "http://a.b"})
        assert error.status_code == 400 and "access-control-allow-origin" in error.headers


def test_without_these_flags():
    with Server("toy") as server, server.client() as client:
        assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 200
        assert "x-stamp" not in client.get("/health").headers


def test_below_a_proxys_path():
    with Server("toy", "--root-path", "/api", "--api-key", "k") as server, server.client() as client:
        assert client.get("/api/health").status_code == 200 and client.get("/api/v1/models").status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert client.post("/api/v1/completions", json=SHORT, headers=headers).status_code == 200
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/api"}]


def test_a_middleware_of_the_users():
    name = f"{__name__}.{Stamp.__name__}"
    with Server("toy", "--middleware", name) as server, server.client() as client:
        assert client.get("/health").headers["x-stamp"] == "mine"


def test_no_documentation():
    with Server("toy", "--disable-fastapi-docs") as server, server.client() as client:
        assert {client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")} == {404}


def test_a_head_of_too_many_bytes():
    with Server("toy", "--h11-max-incomplete-event-size", "3000") as server, server.client() as client:
        assert client.get("/health", headers={"x": "1" * 1000}).status_code == 200
        with socket.create_connection((client.base_url.host, client.base_url.port), WAIT_S) as peer:
            peer.sendall(b"GET /health HTTP/1.1\r\nx: " + b"1" * 4000)  # a head that has not ended
            assert peer.recv(100).startswith(b"HTTP/1.1 400")


def test_what_answers_have_besides():
    flags = ["--return-tokens-as-token-ids", "--enable-prompt-tokens-details", "--enable-server-load-tracking"]
    flags += ["--enable-force-include-usage", "--enable-tokenizer-info-endpoint", "--block-size", "4"]
    seen = []
    for given in (flags, ["--block-size", "4"]):
        with Server("toy", *given) as server, server.client() as client:
            body = {**SHORT, "prompt": "a long enough prompt", "logprobs": 1}
            first, second = (client.post("/v1/completions", json=body).json() for _ in range(2))
            token = first["choices"][0]["logprobs"]["tokens"][0]
            details = second["usage"].get("prompt_tokens_details")
            with client.stream("POST", "/v1/completions", json={**SHORT, "stream": True}) as response:
                usage = any(event != "[DONE]" and event.get("usage") for event in events(response))
            info = client.get("/tokenizer_info").status_code
            seen.append((token.startswith("token_id:"), bool(details), usage, info, client.get("/load").json()))
            seen[-1] += (server.app.state.enable_server_load_tracking,)
    none = {"server_load": 0}
    assert seen == [(True, True, True, 200, none, True), (False, False, False, 404, none, False)]


def test_what_is_logged_of_requests(caplog):
    caplog.set_level(logging.DEBUG)
    body = {**CHAT, "stream": True, "max_tokens": 4, "ignore_eos": True}

    def lines(*flags):
        caplog.clear()
        with Server("toy", "--chat-template", PLAIN, *flags) as server, server.client() as client:
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                events(response)
            client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 0})
        names = ("entrypoints.logger", "server_utils")
        return [r.getMessage() for r in caplog.records if r.name.endswith(names)]

    assert lines() == []
    asked = lines("--enable-log-requests", "--max-log-len", "1")
    assert sum("Received request" in line for line in asked) >= 1 and "prompt: 'h'," in asked[0]
    all_out = lines("--enable-log-requests", "--enable-log-outputs", "--log-error-stack")
    assert any("(streaming delta)" in line for line in all_out) and any(
        "(streaming complete)" in line for line in all_out
    )
    assert any("Exception caught" in line for line in all_out)
    whole = lines("--enable-log-requests", "--enable-log-outputs", "--no-enable-log-deltas")
    assert not any("delta" in line for line in whole) and any("(streaming complete)" in line for line in whole)


def test_what_is_logged_by_uvicorn():
    def flags_of(*flags):
        from mini_vllm.entrypoints.cli.serve import parse_serve_args
        from mini_vllm.entrypoints.openai.api_server import _uvicorn_options

        options = _uvicorn_options(parse_serve_args(["toy", *flags]))
        return {"log_level": options["log_level"], "access_log": options["access_log"]}

    assert flags_of() == {"log_level": "info", "access_log": True}
    given = flags_of("--uvicorn-log-level", "error", "--disable-uvicorn-access-log")
    assert given == {"log_level": "error", "access_log": False}
    before = list(logging.getLogger("uvicorn.access").filters)
    flags_of("--disable-access-log-for-endpoints", "/health, /ping")
    (added,) = [each for each in logging.getLogger("uvicorn.access").filters if each not in before]
    assert added.paths == {"/health", "/ping"}
    logging.getLogger("uvicorn.access").removeFilter(added)


def test_a_plugin_of_thoughts(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from mini_vllm.reasoning import ReasoningParserManager\n"
        "from mini_vllm.reasoning.granite_reasoning_parser import GraniteReasoningParser\n"
        "ReasoningParserManager.register_module('of_mine')(GraniteReasoningParser)\n"
    )
    flags = ["--reasoning-parser-plugin", str(path), "--reasoning-parser", "of_mine", "--chat-template", PLAIN]
    with Server("toy", *flags) as server, server.client() as client:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command, to make a certificate")
def test_clients_certificates(tmp_path):
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run([*words, *names], check=True, capture_output=True)
    flags = ["--ssl-keyfile", key, "--ssl-certfile", cert, "--ssl-ca-certs", cert, "--ssl-cert-reqs", "2"]
    with Server("toy", *flags, "--ssl-ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384") as server:
        verify = ssl.create_default_context(cafile=cert)
        verify.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health", verify=verify, timeout=WAIT_S)
        verify.load_cert_chain(cert, key)
        with httpx.Client(base_url=server.url, verify=verify, timeout=WAIT_S) as client:
            assert client.get("/health").status_code == 200
        verify.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health", verify=verify, timeout=WAIT_S)
