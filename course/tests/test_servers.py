"""A process that forks is asked: answers, and an end where it never answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from course.contract import servers, zygote
from course.labs import ROOT

WORKS = "import sys\nprint('hello', *sys.argv[1:])\nsys.exit(4)\n"
HANGS = "import time\nwhile True:\n    time.sleep(1)\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_run_that_never_ends_is_ended_and_the_next_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "works.py").write_text(WORKS)
    (tmp_path / "hangs.py").write_text(HANGS)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with monkeypatch.context() as patch:
        patch.setattr(zygote, "LIMIT", 1.0)
        done = zygote.python("hangs", [], tmp_path, env)
    assert done.returncode == -1 and "no answer in 1 s" in done.stderr
    done = zygote.python("works", ["you"], tmp_path, env)
    assert (done.returncode, done.stdout, done.stderr) == (4, "hello you\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_server_that_dies_is_told_and_forgotten(tmp_path: Path) -> None:
    answer = servers.ask("no_such_module", tmp_path, dict(os.environ), {}, 60.0)
    assert answer == {"died": "exit status 1 of the server"}
    assert ("no_such_module", tmp_path) not in servers.SERVERS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_server_whose_asker_was_ended_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("x = 1\n")
    job: dict[str, Any] = {"module": "slow", "args": [], "cwd": str(tmp_path), "places": [os.devnull] * 2}
    job["env"] = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "course.contract.zygote"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None and server.stderr is not None
    server.stdout.close()
    server.stdin.write(json.dumps(job) + "\n")
    server.stdin.close()
    assert server.stderr.read() == "" and server.wait() == 0
