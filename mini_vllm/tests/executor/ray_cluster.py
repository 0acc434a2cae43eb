"""A Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.tests.executor.test_multiproc_executor import wait_until
from mini_vllm.tests.helpers import free_port

ROOT = Path(__file__).resolve().parents[3]
_TOKEN = secrets.token_hex(32)  # a process reads it once, whatever clusters it then asks


@dataclass
class TwoNodes:
    """ray: the module, initialized. nodes: their first processes; all that a node has started is in its group."""

    ray: Any
    nodes: list[subprocess.Popen[bytes]]

    def kill(self, node: int) -> None:
        """As if its machine had lost its power."""
        os.killpg(self.nodes[node].pid, signal.SIGKILL)


@contextlib.contextmanager
def two_nodes(cpus: int) -> Iterator[TwoNodes]:
    """With so many CPUs each and Ray's token authentication; this process is the driver on the first. Skips without
    Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'mini-vllm[ray]'")
    home, port, before = Path(tempfile.mkdtemp(prefix="ray")), free_port(), dict(os.environ)
    (home / "token").touch(0o600)
    (home / "token").write_text(_TOKEN)
    os.environ.update(
        RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(home / "token"), RAY_USAGE_STATS_ENABLED="0",
        PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    )  # fmt: skip
    import ray  # reads how it authenticates when it is imported

    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-ip-address", "127.0.0.1"]
    head = ["--head", "--port", str(port), "--include-dashboard=false", "--temp-dir", str(home)]
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for words in (head, ["--address", f"127.0.0.1:{port}"]):
            with (home / f"node{len(nodes)}.log").open("w") as log:
                command = [*start, "--num-cpus", str(cpus), *words, "--block"]
                nodes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True))
            wait_until(lambda: "runtime started" in (home / f"node{len(nodes) - 1}.log").read_text())
        ray.init(address=f"127.0.0.1:{port}", log_to_driver=False)
        wait_until(lambda: ray.cluster_resources().get("CPU") == 2 * cpus)
        yield TwoNodes(ray, nodes)
    finally:
        ray.shutdown()
        for node in nodes[::-1]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait(20)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home, ignore_errors=True)
