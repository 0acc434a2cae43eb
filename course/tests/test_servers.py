"""A process that forks is asked: answers, and an end where it never answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from course.contract import zygote
from course.labs import ROOT

pytestmark = pytest.mark.maintainer

WORKS = "import sys\nprint('hello', *sys.argv[1:])\nsys.exit(4)\n"
HANGS = """import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(other.pid))
time.sleep(600)
"""


def ends(pid: int) -> None:
    """A process that somebody else started is ended too, and taken in by the system when it comes to it."""
    until = time.monotonic() + 120
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(pid, 0)
            time.sleep(0.02)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.slow
def test_a_run_that_never_ends_is_ended_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text(WORKS)
    (tmp_path / "hangs.py").write_text(HANGS)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for limit in (1, 8, 64, 512):  # on a busy machine it may be ended before it has started the other one
        done = zygote.python("hangs", [str(tmp_path / "pid")], tmp_path, env, limit=float(limit))
        assert done.returncode == -1 and f"no answer in {limit} s" in done.stderr
        if (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text():
            break
    ends(int((tmp_path / "pid").read_text()))
    before = zygote.SERVER[0].pid
    done = zygote.python("works", ["you"], tmp_path, env)
    assert (done.returncode, done.stdout, done.stderr) == (4, "hello you\n", "")
    assert zygote.SERVER[0].pid == before, "the one that forks goes on"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_server_that_dies_is_told_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "kills.py").write_text("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    zygote.python("kills", [], tmp_path, env)
    done = zygote.python("kills", [], tmp_path, env)
    assert done.returncode == -1 and done.stderr == "exit status -9 of the server" and not zygote.SERVER
    (tmp_path / "works.py").write_text(WORKS)
    assert zygote.python("works", [], tmp_path, env).returncode == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_server_whose_asker_was_ended_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("x = 1\n")
    job: dict[str, Any] = {"module": "slow", "args": [], "cwd": str(tmp_path), "places": [os.devnull] * 2, "limit": 60}
    job["env"] = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "course.contract.zygote"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None and server.stderr is not None
    server.stdout.close()
    server.stdin.write(json.dumps(job) + "\n")
    server.stdin.close()
    assert server.stderr.read() == "" and server.wait() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.slow
def test_an_asker_that_is_ended_takes_everything_with_it_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    place, env = tmp_path / "pid", {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    code = (
        "import os, sys; from course.contract.zygote import *; python('hangs', sys.argv[1:], Path('.'), {**os.environ})"
    )
    command = [sys.executable, "-c", code, str(place)]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stderr=PIPE, text=True) as asker:
        while not place.is_file() or not place.read_text():
            time.sleep(0.02)
        asker.terminate()
        assert asker.stderr is not None and asker.stderr.read() == ""
    ends(int(place.read_text()))
