"""Keys, request ids, CORS, bounds, sockets, files of flags, and the end of a server."""

import contextlib
import json
import os
import signal
import threading
import time

import pytest

from mini_vllm import AsyncLLM, EngineDeadError
from mini_vllm.entrypoints.cli.serve import parse_serve_args
from mini_vllm.tests.entrypoints.openai.servers import WAIT_S, Server, events, unhurried

SHORT = {"prompt": "hello", "max_tokens": 2, "temperature": 0}
LONG = {"prompt": "hello", "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server():
    flags = ["--api-key", "one", "two", "--enable-request-id-headers", "--max-request-body-size", "2000"]
    flags += [
        "--max-concurrent-requests",
        "2",
        "--served-model-name",
        "first",
        "second",
        "--allowed-origins",
        '["a.b"]',
    ]
    with Server("toy", *flags, "--fingerprint-mode", "custom", "--fingerprint-value", "mine") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.client(headers={"Authorization": "Bearer two"}) as client:
        yield client


@pytest.mark.parametrize("given", [None, "Bearer three", "Basic two", "two", "Bearer onetwo"])
def test_without_a_key_nothing_under_v1(server, given):
    with server.client(headers={"Authorization": given} if given else {}) as client:
        refused = client.post("/v1/completions", json=SHORT)
        assert (refused.status_code, refused.json()["error"]["message"]) == (401, "Unauthorized")
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200


def test_names_and_fingerprint(client):
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["first", "second"]
    answer = client.post("/v1/completions", json={**SHORT, "model": "second"}).json()
    assert (answer["model"], answer["system_fingerprint"]) == ("first", "mine")


def test_request_ids(client):
    answer = client.post("/v1/completions", json=SHORT, headers={"X-Request-Id": "mine"})
    assert answer.headers["X-Request-Id"] == "mine" and answer.json()["id"] == "cmpl-mine"
    assert len(client.get("/health").headers["X-Request-Id"]) == 32


@pytest.mark.parametrize(("rank", "status"), [("0", 200), ("1", 400), ("first", 400), ("-1", 400), ("9" * 99, 400)])
def test_a_header_chooses_the_replica(client, rank, status):
    for body in (SHORT, {**SHORT, "stream": True}):
        answer = client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": rank})
        assert answer.status_code == status or '"code":400' in answer.text.replace(" ", ""), answer.text
        assert status == 200 or "data-parallel-rank" in answer.text.replace("_", "-")


def test_one_id_twice_at_the_same_time(client):
    """Ids of the engine are unique whatever clients call their requests."""
    with client.stream("POST", "/v1/completions", json=LONG, headers={"X-Request-Id": "same"}) as first:
        lines = first.iter_lines()  # kept: to drop it is to hang up
        assert next(lines).startswith("data: ")
        assert client.post("/v1/completions", json=SHORT, headers={"X-Request-Id": "same"}).status_code == 200


def test_cors(client):
    asked = {"Origin": "a.b", "Access-Control-Request-Method": "POST"}
    answer = client.options("/v1/completions", headers=asked)
    assert answer.headers["access-control-allow-origin"] == "a.b"
    assert client.options("/v1/completions", headers={**asked, "Origin": "x.y"}).status_code == 400


def test_a_body_that_is_too_large(client):
    refused = client.post("/v1/completions", json={**SHORT, "prompt": "x" * 3000})
    assert refused.status_code == 413 and "larger than 2000 bytes" in refused.json()["error"]["message"]

    def pieces():
        for _ in range(30):
            yield b" " * 100

    for _ in range(20):  # the answer is not lost while the client is still writing
        refused = client.post("/v1/completions", content=pieces(), headers={"Content-Type": "application/json"})
        assert refused.status_code == 413
    assert client.post("/v1/completions", json=SHORT).status_code == 200


@pytest.mark.slow
def test_more_requests_than_allowed_are_told_to_come_back(server, client):
    with unhurried(server), client.stream("POST", "/v1/completions", json=LONG) as first:
        lines = [first.iter_lines()]
        next(lines[0])
        with client.stream("POST", "/v1/completions", json=LONG) as second:
            lines.append(second.iter_lines())
            next(lines[1])
            refused = client.post("/v1/completions", json=SHORT)
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
            assert refused.json()["error"]["type"] == "Too Many Requests"
            assert client.get("/v1/models").status_code == 200
    server.wait_until_idle()
    deadline = time.monotonic() + WAIT_S
    while client.post("/v1/completions", json=SHORT).status_code == 429:
        assert time.monotonic() < deadline


def test_development_routes_are_for_development(server, client, monkeypatch):
    assert client.post("/reset_prefix_cache").status_code == 404
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with Server("toy") as other, other.client() as dev:
        assert dev.post("/reset_prefix_cache").status_code == dev.post("/reset_mm_cache").status_code == 200


def test_unix_socket(tmp_path):
    import httpx

    path = str(tmp_path / "s")
    how = {"transport": httpx.HTTPTransport(uds=path), "base_url": "http://x", "timeout": WAIT_S}
    with Server("toy", "--uds", path), httpx.Client(**how) as c:
        assert c.get("/health").status_code == 200


@pytest.mark.parametrize("seconds", [0, 60])
def test_the_end_of_a_server(seconds):
    """What runs may end within the time that is given; then it is aborted, and its client hears so."""
    with Server("toy", "--shutdown-timeout", str(seconds)) as server, server.client() as client:
        body = {**LONG, "max_tokens": 300 if seconds else 1900}
        pace = contextlib.nullcontext() if seconds else unhurried(server)
        with pace, client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.loop.call_soon_threadsafe(server.app.state.server.end)
            said = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert said[-1]["choices"][0]["finish_reason"] == ("length" if seconds else "abort")


def test_a_dead_engine_ends_the_server():
    """Whoever asks hears of it, those whose streams run too, and the server ends: something outside starts it anew."""
    with Server("toy") as server, server.client() as client:
        with unhurried(server), client.stream("POST", "/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            server.loop.call_soon_threadsafe(server.engine.shutdown)
            said = [line for line in lines if line.startswith("data: ")]
        assert said[-1] == "data: [DONE]"
        assert json.loads(said[-2][6:])["error"]["type"] == "InternalServerError"
        assert client.get("/health").status_code == 503
        refused = client.post("/v1/completions", json=SHORT)
        assert (refused.status_code, refused.json()["error"]["type"]) == (500, "InternalServerError")
        server.join()


def test_a_core_that_dies_while_nothing_runs_ends_the_server(monkeypatch, caplog):
    """Nobody asks anything: the server finds out, says so, and ends with an error, for its supervisor."""
    pytest.importorskip("zmq", reason="needs the extra serve")
    monkeypatch.setattr("mini_vllm.entrypoints.launcher.WATCHDOG_TIME_S", 0.02)
    with Server("toy", engine=lambda: AsyncLLM(num_blocks=8, enable_multiprocessing=True)) as server:
        os.kill(server.engine.core_client.manager.pid, signal.SIGTERM)
        server.join()
    assert isinstance(server._error, EngineDeadError) and "its process" in str(server._error)
    (said,) = [each.getMessage() for each in caplog.records if each.name.endswith("launcher")]
    assert said == f"the engine is gone, so the server ends: {server._error}"


def test_flags_from_a_file(tmp_path):
    pytest.importorskip("yaml", reason="needs the extra serve")
    file = tmp_path / "flags.yaml"
    file.write_text("model: toy\nport: 7000\napi-key: [a, b]\nenable_prefix_caching: false\nmax-num-seqs: 4\n")
    args = parse_serve_args(["--config", str(file), "--port", "7001"])
    assert (args.model, args.port, args.api_key, args.enable_prefix_caching) == (None, 7001, ["a", "b"], False)
    assert args.max_num_seqs == 4 and args.served_model_name == ["toy"]
    file.write_text("prot: 7000\n")
    with pytest.raises(ValueError, match="there is no flag --prot"):
        parse_serve_args(["--config", str(file)])


@pytest.mark.parametrize("flags, said", [
    (["--grpc"], "--grpc is refused"),
    (["--headless", "--api-server-count", "2"], "--headless is none; got 2"),
    (["--api-server-count", "0"], "must be at least 1 and at most 1024, got 0"),
    (["--enable-auto-tool-choice"], "requires --tool-call-parser"),
    (["--enable-log-outputs"], "requires --enable-log-requests"),
    (["--ssl-keyfile", "k"], "come together"),
    (["--shutdown-timeout", "-1"], "--shutdown-timeout must be at least 0, got -1"),
])  # fmt: skip
def test_flags_that_are_refused_before_anything_is_loaded(flags, said):
    with pytest.raises((ValueError, TypeError), match=said):
        parse_serve_args(["toy", *flags])


def test_paths_without_a_line_in_the_log():
    import logging

    from mini_vllm.entrypoints.openai.server_utils import AccessLogFilter

    def shown(path):
        args = ("127.0.0.1:1", "GET", path, "1.1", 200)
        record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', args, None)
        return AccessLogFilter(["/health", "/metrics"]).filter(record)

    assert [shown(p) for p in ("/health", "/health?a=1", "/metrics", "/v1/models")] == [False, False, False, True]


@pytest.mark.slow
def test_tls(tmp_path):
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2"]
    subprocess.run(["openssl", *made, "-subj", "/CN=localhost"], check=True, capture_output=True)
    with Server("toy", "--ssl-keyfile", key, "--ssl-certfile", cert) as server, server.client(verify=False) as client:
        assert server.url.startswith("https://")
        assert client.get("/health").status_code == 200


@pytest.mark.slow
def test_many_clients_at_once(server):
    """Each hears its own tokens: as alone."""
    with Server("toy") as other:

        def ask(i, found):
            with other.client() as client:
                body = {"prompt": f"client {i}", "max_tokens": 20, "temperature": 0, "return_token_ids": True}
                whole = client.post("/v1/completions", json=body).json()["choices"][0]["token_ids"]
                with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
                    chunks = events(response)[:-1]
                found[i] = whole == [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]

        found = {}
        threads = [threading.Thread(target=ask, args=(i, found)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert found == dict.fromkeys(range(16), True)
