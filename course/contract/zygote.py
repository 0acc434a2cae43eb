"""Python processes that need not import pytest anew: ``python`` is ``subprocess.run`` of ``python -m``, by a fork.

One process (``python -m course.contract.zygote``) has imported what every run of pytest imports, and forks for each
run: a third of a second less. It ends with the process that asked. Without ``os.fork`` each run is a process from the
start."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import Any, TextIO

from course import durations

SERVER: list[subprocess.Popen[str]] = []
COMMAND = [sys.executable, "-m", "course.contract.zygote"]


def python(module: str, args: list[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What ``python -m MODULE ARGS`` says in a folder and an environment, and its exit status."""
    command = [sys.executable, "-m", module, *args]
    if not hasattr(os, "fork"):
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if not SERVER or SERVER[0].poll() is not None:
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        SERVER[:] = [subprocess.Popen(COMMAND, env=own, stdin=PIPE, stdout=PIPE, text=True, encoding="utf-8")]
    stdin, stdout = SERVER[0].stdin, SERVER[0].stdout
    assert stdin is not None and stdout is not None
    with tempfile.TemporaryDirectory() as temp:
        places = [str(Path(temp, name)) for name in ("out", "err")]
        job = {"module": module, "args": args, "cwd": str(cwd), "env": env, "places": places}
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline() or '{"code": -1, "cpu": 0}')
        out, err = (Path(p).read_text("utf-8", errors="replace") if Path(p).is_file() else "" for p in places)
    durations.ELSEWHERE[0] += answer["cpu"]
    return subprocess.CompletedProcess(command, answer["code"], out, err)


def serve(jobs: TextIO, answers: TextIO) -> None:
    """Answers jobs until there are no more."""
    import _pytest.junitxml
    import _pytest.legacypath
    import _pytest.unraisableexception
    import numpy
    import pytest_timeout

    import course.failures.story  # noqa: F401

    _ = (_pytest, numpy, pytest_timeout)
    spent = 0.0
    for line in jobs:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        times = os.times()
        before, spent = spent, times.children_user + times.children_system
        answers.write(json.dumps({"code": os.waitstatus_to_exitcode(status), "cpu": spent - before}) + "\n")
        answers.flush()


def _child(job: dict[str, Any]) -> None:
    code = 1
    try:
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


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
