"""Records what the real server of vLLM v0.22.1 answers on models/pocket, for `test_server_golden.py` to replay.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_server.py

server.json.xz: the answers to `server_cases.py`, and after each list the families of /metrics and the paths of OpenAPI.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from mini_vllm.tests.golden.packed import write_packed
from mini_vllm.tests.golden.server_cases import ARGS, DEADLY, KEYED, KEYED_ARGS, PLAIN
from mini_vllm.tests.golden.server_play import client_of, metrics, openapi, play

SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip
HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[2] / "models" / "pocket"
PACKAGES = ("vllm", "torch", "transformers", "fastapi", "starlette", "pydantic", "uvicorn", "xgrammar")


def options(args):
    """`vllm serve`'s command line for a dict of arguments."""
    found = []
    for name, value in args.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        found += ["--" + name.replace("_", "-"), *map(str, values)]
    return found


@contextmanager
def served(args, port):
    """The real server in a process of its own; gives a client."""
    command = [
        str(Path(sys.executable).parent / "vllm"),
        "serve",
        str(MODEL),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    process = subprocess.Popen([*command, *options(args)], env={**os.environ, **SETTINGS})
    try:
        with client_of(f"http://127.0.0.1:{port}") as client:
            wait(process, client)
            yield client
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


def wait(process, client, seconds=300):
    """Until /health answers."""
    for _ in range(seconds):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(1)
    raise RuntimeError(f"the server did not answer within {seconds} s")


def record(args, cases, port):
    """Every answer under its case's name, then /metrics and OpenAPI."""
    with served(args, port) as client:
        answers = {case["name"]: play(client, case) for case in cases}
        found = {"args": args, "answers": answers, "metrics": metrics(client.get("/metrics").text)}
        return {**found, "openapi": openapi(client.get("/openapi.json").json())}


def record_deadly(port):
    """The answers on a server of their own, of which the last ones are none."""
    with served(ARGS, port) as client:
        return {case["name"]: play(client, case) for case in DEADLY}


def provenance():
    return {
        "recorder": "mini_vllm/tests/golden/record_server.py",
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, CPU",
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "model.safetensors sha256": hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest(),
        "cases sha256": digest(PLAIN + KEYED + DEADLY),
    }


def digest(cases):
    """Of the cases, so that a test can say that they are the ones recorded."""
    return hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()


def main():
    document = {
        "provenance": provenance(),
        "plain": record(ARGS, PLAIN, 8765),
        "keyed": record(KEYED_ARGS, KEYED, 8766),
        "deadly": record_deadly(8767),
    }
    size = write_packed(HERE / "server.json.xz", document)
    print(f"{len(PLAIN)} + {len(KEYED)} cases, {size} bytes")


if __name__ == "__main__":
    main()
