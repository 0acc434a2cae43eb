"""Records what the real server of vLLM v0.22.1 answers on models/pocket where it keeps responses, and where it has two
API servers.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_server_store.py

server-store.json.xz: the answers to the walk of `server_store_cases.py`; the families of /metrics of two API servers
after four completions; and the last words of that service when one of them is killed.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from mini_vllm.tests.golden.packed import write_packed
from mini_vllm.tests.golden.record_server import HERE, MODEL, SETTINGS, options, provenance, wait
from mini_vllm.tests.golden.server_cases import ARGS
from mini_vllm.tests.golden.server_play import client_of
from mini_vllm.tests.golden.server_store_cases import ENVIRONMENT, walk

FILE = HERE / "server-store.json.xz"
BODY = {"model": "pocket", "prompt": "The scheduler", "max_tokens": 6, "temperature": 0}


def families(text):
    """[name, type, labels] of each family of a /metrics page."""
    return [
        [family.name, family.type, sorted({label for sample in family.samples for label in sample.labels})]
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    ]


@contextmanager
def started(port, log, *flags):
    """(the process, a client of it); what it says goes to `log`."""
    words = [str(Path(sys.executable).parent / "vllm"), "serve", str(MODEL), "--port", str(port), *options(ARGS)]
    settings = {**os.environ, **SETTINGS, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO"}
    with open(log, "wb") as out:
        process = subprocess.Popen([*words, "--host", "127.0.0.1", *flags], env=settings, stderr=out, stdout=out)
    try:
        with client_of(f"http://127.0.0.1:{port}") as client:
            wait(process, client, 1500)
            yield process, client
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(600)


def record_two(port, log):
    """Families of two API servers, and what the service says when one is killed."""
    with started(port, log, "--api-server-count", "2") as (process, client):
        while log.read_text().count("Application startup complete") < 2:
            time.sleep(0.5)
        for _ in range(4):
            client.post("/v1/completions", json=BODY)
        found = families(client.get("/metrics").text)
        pid = re.search(r"ApiServer_1 pid=(\d+)", log.read_text())[1]
        os.kill(int(pid), signal.SIGKILL)
        code = process.wait(600)
    said = re.findall(r"RuntimeError: (Process ApiServer_1.*)", log.read_text())[-1]
    return {"metrics": found, "killed": {"exit code": code, "said": said.replace(pid, "#")}}


def main():
    log = HERE / "server-store.log"
    with started(8768, log) as (_, client):
        answers = walk(client)
    document = {"provenance": {**provenance(), "recorder": "mini_vllm/tests/golden/record_server_store.py"},
                "answers": answers, "two servers": record_two(8769, log)}  # fmt: skip
    log.unlink()
    write_packed(FILE, document)
    print(len(answers), "answers")


if __name__ == "__main__":
    main()
