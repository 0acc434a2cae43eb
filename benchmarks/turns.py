"""Arms that are measured in turns: each a process that loads its engine once and then waits for its next question.

A machine is not as fast in every minute (neighbours, heat). If one engine ran after the other, each would see another
machine; in turns they all see the same one, and their ratios hold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from benchmarks.common import ROOT, limit_threads

_MARK = "@answer "


class ArmError(Exception):
    """An arm that cannot answer; the message says why, in one line."""


class Arm:
    """The asking side: a process that runs `benchmarks/SCRIPT` with the job as its argument.

    Args:
        script: file in this folder; it ends in `serve(...)`.
        job: what the arm is told, as JSON.
        threads: for BLAS and torch.
        python: the interpreter that has the engine.
        timeout: seconds for one answer.
    """

    def __init__(self, script: str, job: Any, threads: int, python: str = sys.executable, timeout: float = 900) -> None:
        command = [python, str(ROOT / "benchmarks" / script), json.dumps(job)]
        self.timeout = timeout
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed with the arm
        try:
            self._process = subprocess.Popen(
                command, env=limit_threads(threads, dict(os.environ)), text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._errors,
            )  # fmt: skip
        except OSError as error:
            raise ArmError(f"{type(error).__name__}: {str(error)[:200]}") from None

    def ask(self, do: str, **arguments: Any) -> Any:
        """The answer of the arm's function `do`.

        Raises:
            ArmError: it ended, failed, or took longer than `timeout`.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        watch = threading.Timer(self.timeout, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(_MARK):
                    return json.loads(line.removeprefix(_MARK))
        except OSError:
            pass  # it has ended: below
        finally:
            late = watch.finished.is_set()
            watch.cancel()
        raise ArmError(f"no answer within {self.timeout:g} s" if late else self._reason())

    def _reason(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines() or ["no output"]
        return f"exit status {status}: {lines[-1][:200]}"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def serve(functions: dict[str, Callable[..., Any]]) -> None:
    """The answering side: call what each line of the standard input asks for, until it ends."""
    for line in sys.stdin:
        question = json.loads(line)
        answer = functions[question.pop("do")](**question)
        print(_MARK + json.dumps(answer), flush=True)
