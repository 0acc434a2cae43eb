"""``python`` is ``subprocess.run`` of ``python -m``, by a fork of a process that has imported what takes long.

That process (``python -m course.contract.zygote``) ends with the one that asked, and what a run has started with it.
Without ``os.fork`` each run is a process from the start."""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

from course.grade.kernel import end
from course.labs import ROOT

LIMIT = 3600.0
"""Seconds for one run: all starters take a minute or two; this ends a run that waits for ever."""
SERVER: list[subprocess.Popen[str]] = []
ELSEWHERE = [0.0]
"""Processor seconds of what the server did for this process, until it is waited for and they are counted as its own."""


def python(module: str, args: list[str], cwd: Path, env: dict[str, str], limit: float = 0.0) -> CompletedProcess[str]:
    """What ``python -m MODULE ARGS`` says in a folder and an environment, and its exit status; -1, and the reason at
    the end of ``stderr``, where it is ended after ``limit`` seconds, or dies with the process that forks."""
    command, limit = [sys.executable, "-m", module, *args], limit or LIMIT
    late = f"no answer in {limit:.0f} s"
    if not hasattr(os, "fork"):
        try:
            return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return CompletedProcess(command, -1, "", late)
    with tempfile.TemporaryDirectory() as temp:
        places = [str(Path(temp, name)) for name in ("out", "err")]
        job = {"module": module, "args": args, "cwd": str(cwd), "env": env, "places": places, "limit": limit}
        code, died = _ask(job)
        out, err = (Path(p).read_text("utf-8", errors="replace") if Path(p).is_file() else "" for p in places)
    return CompletedProcess(command, -1 if code is None else code, out, err + (died or (late if code is None else "")))


def _ask(job: dict[str, Any]) -> tuple[int | None, str]:
    """Exit status of a job, None where it was late; why the server died, where it did: the next job gets a new one."""
    if not SERVER or SERVER[0].poll() is not None:
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "course.contract.zygote"]
        pipes: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "encoding": "utf-8", "start_new_session": True}
        SERVER[:] = [subprocess.Popen(command, cwd=ROOT, env=own, **pipes)]
    server, line = SERVER[0], ""
    assert server.stdin is not None and server.stdout is not None
    try:
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
    except OSError:
        line = ""
    finally:
        if not line:
            server.terminate()
            SERVER.clear()
            ELSEWHERE[0] = 0.0
            status = server.wait()
    if not line:
        return -1, f"exit status {status} of the server"
    code, cpu = json.loads(line)
    ELSEWHERE[0] += cpu
    return code, ""


def serve() -> None:
    """Imports what runs of pytest and pages import; answers jobs, each with its children's processor seconds."""
    import _pytest.junitxml
    import _pytest.legacypath
    import _pytest.unraisableexception
    import pytest_timeout

    import course.failures.story
    import mini_vllm

    _ = (_pytest, pytest_timeout, course.failures.story, mini_vllm.LLM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cpu = 0.0
    for line in sys.stdin:
        code, times = _forked(json.loads(line)), os.times()
        before, cpu = cpu, times.children_user + times.children_system
        try:
            sys.stdout.write(json.dumps([code, cpu - before]) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # whoever asked was ended meanwhile: there is nobody to tell
            os._exit(0)


def _forked(job: dict[str, Any]) -> int | None:
    """Exit status of a job, None where it was late."""
    asker, until, pid = os.getppid(), time.monotonic() + job["limit"], os.fork()
    if pid == 0:
        _child(job)
    try:
        while not (found := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                return None
            if os.getppid() != asker:  # nobody waits for it any more
                sys.exit(0)
            time.sleep(0.005)
        return os.waitstatus_to_exitcode(found[1])
    finally:
        end(pid)


def _child(job: dict[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        modes = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        handles = [os.open(os.devnull, os.O_RDONLY), *(os.open(place, modes, 0o600) for place in job["places"])]
        for place, handle in enumerate(handles):
            os.dup2(handle, place)
        os.chdir(job["cwd"])
        os.environ.clear()
        os.environ.update(job["env"])
        sys.argv = [job["module"], *job["args"]]
        path = [job["cwd"], *job["env"].get("PYTHONPATH", "").split(os.pathsep)]
        sys.path[:] = [*dict.fromkeys(filter(None, path)), *(p for p in sys.path if p not in path)]
        if Path(job["cwd"]).resolve() != ROOT and Path(job["cwd"], "mini_vllm").is_dir():
            _forget("mini_vllm", "course")  # that folder has an engine of its own: it is imported, not this process's
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forget(*packages: str) -> None:
    """What imports these packages from here on finds them on ``sys.path``."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


if __name__ == "__main__":
    serve()
