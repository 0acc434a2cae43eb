"""A server as a process of a sweep: started, waited for, emptied between runs, ended.

Upstream twin: `vllm/benchmarks/sweep/server.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any


class ServerProcess:
    """A server; also one that runs already (`server_cmd` empty, `address` given), which is neither started nor ended.

    Upstream: upstream/vllm/benchmarks/sweep/server.py:14 — `ServerProcess`, which kills its group unasked.
    """

    def __init__(
        self, server_cmd: list[str], after_bench_cmd: list[str] | None = None, show_stdout: bool = False,
        address: str | None = None,
    ) -> None:  # fmt: skip
        self.server_cmd, self.after_bench_cmd = server_cmd, after_bench_cmd or []
        self.show_stdout = show_stdout
        self.address = address or self._address()
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the server

    def _address(self) -> str:
        def option(names: tuple[str, ...], default: str) -> str:
            places = [i for i, word in enumerate(self.server_cmd[:-1]) if word in names]
            return self.server_cmd[places[-1] + 1] if places else default

        return f"http://{option(('--host',), '127.0.0.1')}:{option(('-p', '--port'), '8000')}"

    def __enter__(self) -> ServerProcess:
        if self.server_cmd:
            self._process = subprocess.Popen(
                self.server_cmd,
                start_new_session=True,
                stdout=None if self.show_stdout else subprocess.DEVNULL,
                stderr=None if self.show_stdout else self._said,
                env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"},  # for the emptying of caches
            )
        return self

    def __exit__(self, *_: Any) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
                return

    def wait_until_ready(self, timeout: float) -> None:
        """Ask `/health` until it answers. Raises OSError where the process has ended, TimeoutError."""
        start = time.monotonic()
        while not self._asks("/health", "GET"):
            if self._process is not None and self._process.poll() is not None:
                raise OSError(f"Server process crashed with return code {self._process.returncode}{self._last_words()}")
            if time.monotonic() - start > timeout:
                raise TimeoutError(f"Server failed to become ready within {timeout} seconds.")
            time.sleep(0.1)

    def _last_words(self) -> str:
        """What it wrote to stderr before it ended: its last line that names an error, or else its last."""
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        named = [line for line in lines if "Error" in line or "error:" in line]
        return f": {(named or lines)[-1][:300]}" if lines else ""

    def after_bench(self) -> None:
        """What happens between two runs: the command given for it, or the prefix cache is emptied where the server
        allows it.
        """
        if self.after_bench_cmd:
            self.run_subcommand(self.after_bench_cmd)
        else:
            self._asks("/reset_prefix_cache", "POST")

    def run_subcommand(self, cmd: list[str]) -> None:
        """Raises OSError with the last line that the command wrote, where it fails."""
        done = subprocess.run(cmd, capture_output=not self.show_stdout, text=True, check=False)
        if done.returncode:
            said = ((done.stderr or "").strip() or (done.stdout or "").strip() or "no output").splitlines()[-1]
            raise OSError(f"{cmd[0]} ended with status {done.returncode}: {said[:300]}")

    def _asks(self, route: str, method: str) -> bool:
        request = urllib.request.Request(self.address + route, method=method, data=b"" if method == "POST" else None)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False
