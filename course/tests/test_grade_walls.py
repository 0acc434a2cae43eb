"""Grading: what keeps native code in, and what makes two runs the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from course.grade.report import render
from course.grade.settings import Settings
from course.labs import ROOT
from course.tests import submissions as made
from course.tests.conftest import SOLUTION
from course.tests.test_grade import FAST, attack, linux, run

pytestmark = pytest.mark.maintainer


@linux
@pytest.mark.slow
def test_honest_randomness_is_the_same_on_every_run(small_course: Path) -> None:
    body = "import random\nimport numpy as np\nLUCK = np.random.default_rng().random() + random.Random().random()\n"
    text = SOLUTION.replace(made.TOP, made.TOP + body, 1).replace("return 2 * x", "raise ValueError(repr(LUCK))")
    settings = Settings(limits=FAST.limits, allow=("numpy",))
    runs = [run(small_course, {"a": text.encode()}, settings) for _ in "ab"]
    assert re.search(r"ValueError: [01]\.\d{8}", render(runs[0], "json")), "no message shows what was drawn"
    assert render(runs[0], "json") == render(runs[1], "json")


@linux
def test_one_that_only_waits_ends_and_one_that_cannot_load_ends_once(small_course: Path) -> None:
    rows = {
        r.submission: r
        for r in run(small_course, {n: attack(n, small_course) for n in ("sleeps", "endless-loop")}).rows
    }
    assert rows["sleeps"].findings == ("starter.py itself: waited for 0.5 s",)
    assert rows["endless-loop"].findings == ("starter.py itself: more than 0.5 s of processor time",)


@linux
def test_the_kernel_keeps_native_code_in(tmp_path: Path) -> None:
    """What a submission could do that has got past the interpreter's walls: nothing of this list."""
    (tmp_path / "secret").write_text("solution")
    (tmp_path / "own").mkdir()
    code = f"""
import ctypes, os, signal
from pathlib import Path
from course.grade import kernel
from course.grade.clean import readable
kernel.drop_privileges()
have = kernel.forbid_files(map(Path, readable()), [Path({str(tmp_path / "own")!r})]), kernel.forbid_system_calls()
libc = ctypes.CDLL(None, use_errno=True)
def tried(call):
    try:
        return call()
    except (OSError, ValueError):
        return "refused"
def raw(number, *args):
    return "refused" if libc.syscall(number, *args) < 0 else "done"
import fcntl, socket, resource
r, w = os.pipe()
tries = dict(
    read=lambda: open({str(tmp_path / "secret")!r}).read(), write=lambda: open({str(tmp_path / "new")!r}, "w"),
    users=lambda: open("/etc/passwd").read(), fork=os.fork, socket=socket.socket,
    kill=lambda: os.kill(os.getppid(), 0),
    run=lambda: os.execv("/bin/true", ["true"]), owner=lambda: fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid()),
    signal=lambda: fcntl.fcntl(r, 10, 9), memory=lambda: os.memfd_create("x"), up=lambda: open("../new", "w"),
    limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)), other=lambda: open("/proc/1/environ").read(),
)
print(all(have), *(name for name, call in tries.items() if tried(call) != "refused"))
print(tried(lambda: open({str(tmp_path / "own" / "x")!r}, "w").write("fine")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    have, *rest = done.stdout.split("\n")
    if have.startswith("False"):
        pytest.skip("no Landlock or no seccomp here")
    assert (have, rest[0]) == ("True", "4"), done.stdout + done.stderr
