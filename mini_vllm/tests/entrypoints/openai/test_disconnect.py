"""Clients that leave, and clients that read slowly: no request stays, no block is lost, no memory grows."""

import json
import socket
import time

import pytest

from mini_vllm.tests.entrypoints.openai.servers import WAIT_S, Server, unhurried

LONG = {"prompt": "hello", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server():
    with Server("toy", "--enable-server-load-tracking", send_buffer=8192) as running:
        yield running


def post(server, path, body):
    """A raw connection that has sent its request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(server.url.removeprefix("http://").split(":"))
    connection.sendall(head.encode() + data)
    return connection


def wait_for_requests(server, count):
    deadline = time.monotonic() + WAIT_S
    while len(server.engine.output_processor.request_states) != count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def slowly(server):
    with unhurried(server):
        yield


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.usefixtures("slowly")
def test_a_client_that_leaves_ends_its_request(server, stream):
    before = server.engine._stats.finished.get("abort", 0)
    connection = post(server, "/v1/completions", {**LONG, "stream": stream, "n": 2, "temperature": 1})
    wait_for_requests(server, 2)
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    connection.close()
    server.wait_until_idle()
    assert server.engine.scheduler.kv_cache_manager.usage == 0.0
    assert server.engine._stats.finished.get("abort", 0) == before + 2


@pytest.mark.usefixtures("slowly")
def test_several_prompts_end_together(server):
    connection = post(server, "/v1/completions", {**LONG, "prompt": ["a", "b", "c"], "stream": True})
    wait_for_requests(server, 3)
    connection.close()
    server.wait_until_idle()


@pytest.mark.usefixtures("slowly")
def test_load_is_zero_afterwards(server):
    def wait_for(load):
        deadline = time.monotonic() + WAIT_S
        while client.get("/load").json() != {"server_load": load}:
            assert time.monotonic() < deadline, load
            time.sleep(0.005)

    with server.client() as client:
        wait_for(0)  # of who left before: the engine is through with a request a moment earlier
        connection = post(server, "/v1/completions", {**LONG, "stream": True})
        wait_for(1)
        connection.close()
        server.wait_until_idle()
        wait_for(0)


@pytest.mark.slow
def test_a_slow_reader_gets_everything_in_few_pieces(server):
    """While nobody reads, the server holds what its buffers hold; all further tokens become one piece."""
    body = {**LONG, "stream": True, "return_token_ids": True, "logprobs": 5}
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = server.url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    with unhurried(server):
        wait_for_requests(server, 1)
    server.wait_until_idle()  # the engine has not waited for the reader
    received = b""
    while piece := connection.recv(1 << 16):
        received += piece
    lines = [line[6:] for line in received.split(b"\r\n") if line.startswith(b"data: ")]
    *chunks, done = [line.strip() for line in b"\n".join(lines).split(b"\n") if line.strip()]
    assert done == b"[DONE]"
    ids = [token for chunk in chunks for token in json.loads(chunk)["choices"][0]["token_ids"]]
    assert len(ids) == 1500
    assert len(chunks) < 1000
