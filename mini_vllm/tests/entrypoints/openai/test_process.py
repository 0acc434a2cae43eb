"""`mini-vllm serve` as a process: signals, what is running when they come, TLS, Unix sockets, a port that is taken."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from mini_vllm.tests.entrypoints.openai.servers import KEEP_ALIVE_S, WAIT_S, Server
from mini_vllm.tests.helpers import free_port

httpx = pytest.importorskip("httpx", reason="needs the extra serve")

ENDLESS = {"prompt": "A fox", "max_tokens": 2000, "ignore_eos": True, "n": 8, "seed": 1, "stream": True}


MAIN = "from mini_vllm.entrypoints.cli.main import main; main()"


def command(*words):
    return [sys.executable, "-c", MAIN, "serve", *words]


@contextmanager
def process(*flags, model="models/pocket"):
    """(the process, a client) once it answers; it is gone afterwards, whatever happened."""
    port = free_port()
    words = command(model, "--host", "127.0.0.1", "--port", str(port), *flags)
    child = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=patient_env())
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
            until(lambda: answers(client) or child.poll() is not None)
            yield child, client
    finally:
        child.kill()
        child.wait()


def answers(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def patient_env():
    """Of a server that ends no idle connection."""
    return {**os.environ, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S)}


def refuses(client):
    """Whether the server has heard a signal: nobody is let in any more."""
    try:
        socket.create_connection((client.base_url.host, client.base_url.port)).close()
    except ConnectionRefusedError:
        return True
    return False


def until(true):
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(pid):
    """Processes that this one has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in found.read_text().split()] if found.exists() else []


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also where it goes between the opening and the reading
        return False


@pytest.mark.slow
def test_a_signal_lets_what_runs_end_and_takes_nothing_new():
    with process("--shutdown-timeout", "600") as (child, client):
        body = {"prompt": "A fox", "max_tokens": 200, "ignore_eos": True, "temperature": 0, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            child.send_signal(signal.SIGTERM)
            events = [line[6:] for line in lines if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        assert child.wait(WAIT_S) == 0
        assert not answers(client)


@pytest.mark.slow
@pytest.mark.parametrize(("timeout", "signals"), [("600", 2), ("1", 1)], ids=["second signal", "deadline"])
def test_what_still_runs_is_cut_off_and_told_so(timeout, signals):
    with process("--shutdown-timeout", timeout) as (child, client):
        core = children(child.pid)
        with client.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()
            next(lines)
            child.send_signal(signal.SIGTERM)
            if signals == 2:
                until(lambda: refuses(client))  # two that a busy process has not looked at yet would be one
                child.send_signal(signal.SIGTERM)
            *_, last, done = [line[6:] for line in lines if line]
        assert done == "[DONE]"
        assert '"finish_reason":"abort"' in last or '"error"' in last
        assert child.wait(WAIT_S) == 0
        until(lambda: not any(map(alive, core)))


@pytest.mark.slow
def test_a_core_that_is_killed_while_nothing_runs_ends_the_process_with_an_error():
    with process() as (child, _):
        (core,) = children(child.pid)
        os.kill(core, signal.SIGKILL)
        assert child.wait(WAIT_S) == 1


@pytest.mark.slow
def test_a_port_that_is_taken_is_named_before_the_model_is_loaded():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        words = command("toy", "--host", "127.0.0.1", "--port", str(port))
        found = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S)
    assert found.returncode != 0
    assert "Traceback" not in found.stderr and "in use" in found.stderr + found.stdout


def test_a_unix_socket(tmp_path):
    path = str(tmp_path / "server.sock")
    with Server("toy", "--uds", path) as server:
        assert server.url == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url="http://server", timeout=WAIT_S) as client:
            assert client.get("/health").status_code == 200
            answer = client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2}).json()
            assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command, to make a certificate")
def test_tls(tmp_path):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*words, *names], check=True, capture_output=True)
    with Server("toy", "--ssl-keyfile", key, "--ssl-certfile", certificate) as server:
        assert server.url.startswith("https://127.0.0.1:")
        verify = ssl.create_default_context(cafile=certificate)
        with httpx.Client(base_url=server.url, verify=verify, timeout=WAIT_S) as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == "toy"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{server.url}/health", timeout=WAIT_S)
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http") + "/health", timeout=WAIT_S)
