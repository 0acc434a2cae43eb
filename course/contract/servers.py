"""Processes that have imported what takes long, and answer one job a line: ``zygote`` and ``course.pages.blocks``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

Job = dict[str, Any]
SERVERS: dict[tuple[str, Path], subprocess.Popen[str]] = {}
ELSEWHERE: dict[int, float] = {}
"""Processor seconds of what each server did for this process, until it is waited for and they are counted as its own."""


def ask(module: str, root: Path, env: dict[str, str], job: Job, limit: float) -> Job:
    """What ``python -m MODULE``, started in ``root`` where it is not there yet, answers to a job.

    ``{"died": why}`` where it answers nothing, or not within ``limit`` seconds; then the next job gets a new one, as
    after an interruption. It ends with this process, as its input ends.
    """
    if (module, root) not in SERVERS or SERVERS[module, root].poll() is not None:
        command, pipes = [sys.executable, "-m", module], {"stdin": PIPE, "stdout": PIPE, "start_new_session": True}
        SERVERS[module, root] = subprocess.Popen(command, cwd=root, env=env, encoding="utf-8", **pipes)  # type: ignore[call-overload]
    server, line, start = SERVERS[module, root], "", time.monotonic()
    assert server.stdin is not None and server.stdout is not None
    timer = threading.Timer(limit, end, [server.pid])
    timer.start()
    try:
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
    except OSError:
        line = ""
    finally:
        timer.cancel()
        if not line:
            del SERVERS[module, root]
            end(server.pid)
            status = server.wait()
            ELSEWHERE.pop(server.pid, None)
    if not line:
        late = time.monotonic() - start >= limit
        return {"died": f"no answer in {limit:.0f} s" if late else f"exit status {status} of the server"}
    answer = json.loads(line)
    ELSEWHERE[server.pid] = ELSEWHERE.get(server.pid, 0.0) + answer["cpu"]
    return answer


def serve(answer: Callable[[Job], Job]) -> None:
    """Answers jobs until there are no more, each with the processor seconds of the children that ended meanwhile."""
    cpu = 0.0
    for line in sys.stdin:
        made, times = answer(json.loads(line)), os.times()
        before, cpu = cpu, times.children_user + times.children_system
        try:
            sys.stdout.write(json.dumps(made | {"cpu": cpu - before}) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # whoever asked was ended meanwhile: there is nobody to tell
            os._exit(0)


def end(pid: int) -> None:
    """Kills a process and its group; it is still to be waited for."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
