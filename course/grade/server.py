"""Runs one lab's tests on many submissions: imports and collection once, then a fork for each submission.

``python -m course.grade.server JOB OUT``, started inside the clean copy. A fork that runs out of time or dies costs
the test that it was in, and a new fork goes on with the next test.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from course.grade import kernel
from course.grade.fork import run_fork, sender
from course.grade.processes import children, cpu_seconds, end_tree
from course.grade.settings import Limits
from course.grade.watch import fingerprint

MAX_TALK = 1 << 20
HANG_FACTOR = 4
MAX_PROCESSES = 16


@dataclass
class Attempt:
    """A submission on its way through the lab: what is known, and the fork that works on it now."""

    name: str
    status: str = ""
    findings: list[str] = field(default_factory=list)
    outcomes: dict[str, list[str]] = field(default_factory=dict)
    at: int = 0
    stops: int = 0
    cpu: float = 0.0
    pid: int = 0
    reader: int = -1
    token: str = ""
    talk: bytes = b""
    heard: int = 0
    running: bool = False
    started: float = 0.0
    test_cpu: float = 0.0

    def note(self, *findings: str) -> None:
        self.findings += [text for text in findings if text not in self.findings]


class Server:
    """The pytest plugin that takes the place of the run loop."""

    def __init__(self, job: dict[str, Any], out: Path) -> None:
        self.job, self.out = job, out
        self.limits = Limits(**job["limits"])
        self.running: dict[int, Attempt] = {}
        self.items: list[pytest.Item] = []
        self.names: list[str] = []
        self.before: Any = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = list(session.items)
        self.names = [item.nodeid.split("::", 1)[1] for item in self.items]
        self.before = fingerprint({item.module for item in self.items if hasattr(item, "module")})
        kernel.adopt_orphans()
        attempts = [Attempt(name) for name in self.job["names"]]
        waiting = list(reversed(attempts)) if self.items else []
        while waiting or self.running:
            while waiting and len(self.running) < self.job["jobs"]:
                self.fork(waiting.pop())
            self.listen()
        rows = [
            {"name": a.name, "status": a.status, "findings": a.findings, "outcomes": a.outcomes, "cpu": a.cpu}
            for a in attempts
        ]
        self.out.write_text(json.dumps({"tests": self.names, "rows": rows}), encoding="utf-8")
        return True

    def fork(self, attempt: Attempt) -> None:
        """Starts a fork at the attempt's next test."""
        attempt.token, attempt.talk, attempt.running = secrets.token_hex(16), b"", False
        attempt.reader, writer = os.pipe()
        attempt.pid = os.fork()
        if attempt.pid == 0:
            try:
                os.setsid()
                self._only(writer)
                run_fork(self.job, attempt.name, attempt.at, self.items, sender(writer, attempt.token), self.before)
            finally:
                os._exit(0)
        os.close(writer)
        attempt.started, attempt.test_cpu = time.monotonic(), 0.0
        self.running[attempt.reader] = attempt

    def _only(self, writer: int) -> None:
        """A fork keeps no handle but its own pipe: not the other forks' pipes, not a terminal."""
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        os.closerange(3, writer)
        os.closerange(writer + 1, 1024)

    def listen(self) -> None:
        """Takes what the forks say; ends those that are finished, late or gone."""
        ready = select.select(list(self.running), [], [], 0.05)[0]
        for reader, attempt in list(self.running.items()):
            gone = False
            if reader in ready:
                text = os.read(reader, 1 << 16)
                gone = not text
                attempt.talk += text
                attempt.heard += len(text)
                self.hear(attempt)
            late = "" if attempt.status or gone else self.late(attempt)
            if attempt.status or gone or late:
                self.stop(attempt, late)

    def hear(self, attempt: Attempt) -> None:
        """Every whole line must carry the token and follow the order of the tests."""
        *lines, attempt.talk = attempt.talk.split(b"\n")
        for line in lines:
            token, _, text = line.partition(b" ")
            try:
                good = secrets.compare_digest(token, attempt.token.encode()) and not attempt.status
                self.take(attempt, json.loads(text) if good else {})
            except (ValueError, KeyError, TypeError):
                attempt.status = "tampered"
                attempt.note("wrote to the runner's pipe")
        if attempt.heard > MAX_TALK:
            attempt.status = "tampered"
            attempt.note("flooded the runner's pipe")

    def take(self, attempt: Attempt, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind in ("start", "done") and (message["index"] != attempt.at or attempt.running is (kind == "start")):
            raise ValueError(kind)
        if kind == "start":
            attempt.running, attempt.started = True, time.monotonic()
            attempt.test_cpu = cpu_seconds(attempt.pid) or 0.0
        elif kind == "done":
            attempt.outcomes[self.names[attempt.at]] = [str(message["outcome"]), str(message["message"])]
            attempt.at, attempt.running = attempt.at + 1, False
        elif kind == "end":
            if attempt.at != len(self.names):
                raise ValueError(kind)
            attempt.status = "graded"
        elif kind == "noted":
            attempt.note(*message["findings"])
        elif kind in ("refused", "broken", "tampered"):
            attempt.status = kind
            attempt.note(*message.get("findings", ()), *filter(None, [message.get("message")]))
        else:
            raise ValueError(kind)

    def late(self, attempt: Attempt) -> str:
        """Why a fork must end now, "" while it may go on."""
        cpu = cpu_seconds(attempt.pid)
        wall = time.monotonic() - attempt.started
        used = (wall if cpu is None else cpu - attempt.test_cpu, wall / HANG_FACTOR)
        if max(used) > self.limits.test_seconds:
            return f"more than {self.limits.test_seconds:g} s"
        if cpu is not None and attempt.cpu + cpu > self.limits.lab_seconds:
            return f"the lab took more than {self.limits.lab_seconds:g} s"
        if "calls" not in self.job["walls"] and len(children().get(attempt.pid, [])) > MAX_PROCESSES:
            return f"more than {MAX_PROCESSES} processes"
        return ""

    def stop(self, attempt: Attempt, late: str) -> None:
        """Ends a fork; where it is not finished, its test is lost and the next fork goes on behind it."""
        attempt.cpu += cpu_seconds(attempt.pid) or 0.0
        end_tree(attempt.pid, {a.pid for a in self.running.values() if a is not attempt})
        os.close(attempt.reader)
        del self.running[attempt.reader]
        if attempt.status:
            return
        if attempt.at < len(self.names):
            lost = ["timeout", late] if late else ["died", "the process ended inside this test"]
            attempt.outcomes[self.names[attempt.at]] = lost
            attempt.note(f"{self.names[attempt.at]}: {lost[1]}")
        attempt.at, attempt.stops = attempt.at + 1, attempt.stops + 1
        spent = attempt.stops >= self.limits.stops or late.startswith("the lab")
        if attempt.at < len(self.names) and not spent:
            self.fork(attempt)
            return
        for name in self.names[attempt.at :]:
            attempt.outcomes[name] = ["not run", "too many tests before it did not end"]
        attempt.status = "graded"


def main(job_file: str, out_file: str) -> int:
    """Entry of the process."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    Path(job_file).unlink()
    args = [str(Path(job["lab"]) / "test_lab.py"), "-q", "-s", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    args += ["-m", "not gpu and not real_vllm", "--rootdir", job["root"]]
    return int(pytest.main(args, plugins=[Server(job, Path(out_file))]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
