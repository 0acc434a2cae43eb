"""Python processes that need not import pytest anew: ``python`` is ``subprocess.run`` of ``python -m``, by a fork.

One process (``python -m course.contract.zygote``) has imported what every run of pytest imports, and forks for each
run: a third of a second less. It ends with the process that asked. Without ``os.fork`` each run is a process from the
start."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from course.contract import servers
from course.labs import ROOT

LIMIT = 3600.0
"""Seconds for one run: all starters take a minute or two; this ends a run that waits for ever."""


def python(module: str, args: list[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What ``python -m MODULE ARGS`` says in a folder and an environment, and its exit status."""
    command = [sys.executable, "-m", module, *args]
    if not hasattr(os, "fork"):
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as temp:
        places = [str(Path(temp, name)) for name in ("out", "err")]
        job = {"module": module, "args": args, "cwd": str(cwd), "env": env, "places": places}
        answer = servers.ask("course.contract.zygote", ROOT, own, job, LIMIT)
        out, err = (Path(p).read_text("utf-8", errors="replace") if Path(p).is_file() else "" for p in places)
    return subprocess.CompletedProcess(command, answer.get("code", -1), out, err + answer.get("died", ""))


def serve() -> None:
    """Imports what every run of pytest imports, and answers jobs."""
    import _pytest.junitxml
    import _pytest.legacypath
    import _pytest.unraisableexception
    import numpy
    import pytest_timeout

    import course.failures.story  # noqa: F401

    _ = (_pytest, numpy, pytest_timeout)
    servers.serve(_forked)


def _forked(job: dict[str, Any]) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        _child(job)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


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
    serve()
