"""Runs one lab's tests on many submissions: imports and collection once, then a fork for each submission.

``python -m course.grade.server ROOT LAB MODULES...``, started inside the clean copy, takes jobs, a line of standard
input each: ``["JOB", "OUT"]``. Each has a process of its own, a fork of this one that ends before the next begins.
A fork that runs out of time or dies costs the test that it was in, and a new fork goes on with the next test.

Where there is /proc, nothing is measured by the clock: a fork's processor time counts, and the time that it waits for
nothing (its state, looked at twenty times a second). So a loaded, stopped or sleeping machine changes no mark."""

import json
import os
import secrets
import select
import shutil
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from course.grade.fork import prepare, run_fork, sender
from course.grade.kernel import end, look
from course.grade.proofs import Twin, endings, told, verdict
from course.grade.settings import DONE, Limits
from course.grade.watch import Snapshot
from course.pytest_plugin import NO_STORIES

MAX_TALK, POLL, HANG_FACTOR = 1 << 20, 0.05, 4
"""``HANG_FACTOR``: where processor time cannot be told (no /proc), the clock may show this many times as much."""
LOADING, TWIN_SECONDS = "starter.py itself", 0.3
KEPT = ("name", "status", "findings", "outcomes", "cpu", "used")


@dataclass
class Attempt:
    """A submission in a lab, and its fork. ``phase``: ``load``, ``test``; ``steps``: now and next, None at the end."""

    name: str
    status: str = ""
    findings: list[str] = field(default_factory=list)
    outcomes: dict[str, list[str]] = field(default_factory=dict)
    at: int = 0
    steps: list[Twin | int | None] = field(default_factory=list)
    proof: str | None = None
    asked: str = ""
    twin: bool = False
    stops: int = 0
    cpu: float = 0.0
    pid: int = 0
    reader: int = -1
    orders: int = -1
    token: str = ""
    talk: bytes = b""
    heard: int = 0
    phase: str = ""
    started: float = 0.0
    test_cpu: float = 0.0
    seen: float = 0.0
    seen_cpu: float = 0.0
    idle: float = 0.0
    used: dict[str, float] = field(default_factory=dict)

    def note(self, *findings: str, status: str = "") -> None:
        self.findings += [text for text in findings if text not in self.findings]
        self.status = status or self.status


class Server:
    """The pytest plugin that takes the place of the run loop."""

    def __init__(self, allowed: list[str]) -> None:
        self.allowed = allowed
        self.job: dict[str, Any] = {}
        self.running: dict[int, Attempt] = {}
        self.items: list[pytest.Item] = []
        self.names: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items, session.config.stash[NO_STORIES] = list(session.items), True
        self.names = [item.nodeid.split("::", 1)[1] for item in self.items]
        said = "".join(path.read_text(encoding="utf-8") for path in {item.path for item in self.items})
        prepare([*self.allowed, *(name for name in ("mini_vllm",) if name in said)])
        self.before = Snapshot({item.module for item in self.items if hasattr(item, "module")}, self.items)
        self.codes = endings(self.items, session.config)
        for job, out in map(json.loads, sys.stdin):
            pid = os.fork()
            if pid == 0:
                try:
                    self.grade(Path(job), Path(out))
                except BaseException:
                    traceback.print_exc()
                os._exit(0)
            os.waitpid(pid, 0)
            print(f"\n{DONE}", flush=True)
        return True

    def grade(self, job: Path, out: Path) -> None:
        """One job, in a process that ends with it."""
        self.job = json.loads(job.read_text(encoding="utf-8"))
        job.unlink()
        self.limits = Limits(**self.job["limits"])
        attempts = [Attempt(name) for name in self.job["names"]]
        waiting = list(reversed(attempts)) if self.items else []
        while waiting or self.running:
            while waiting and self.room():
                self.fork(waiting.pop())
            self.listen()
        rows = [{key: vars(attempt)[key] for key in KEPT} for attempt in attempts]
        out.write_text(json.dumps({"rows": rows}), encoding="utf-8")

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        """Keeps what a test says at its end."""
        self.said[:] = [pyfuncitem.obj(**{n: pyfuncitem.funcargs[n] for n in pyfuncitem._fixtureinfo.argnames})]
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool:
        """No alarm by the clock: this process watches the forks."""
        return True

    pytest_timeout_cancel_timer = pytest_timeout_set_timer

    def room(self) -> bool:
        """Whether one more fork may start: one that only waits leaves its place to another, once."""
        busy = sum(attempt.idle < 10 * POLL for attempt in self.running.values())
        return busy < self.job["jobs"] and len(self.running) < 2 * self.job["jobs"]

    def fork(self, attempt: Attempt) -> None:
        """Starts a fork at the attempt's next test."""
        attempt.token, attempt.talk, attempt.phase = secrets.token_hex(16), b"", ""
        attempt.reader, writer = os.pipe()
        orders, attempt.orders = os.pipe()
        attempt.pid = os.fork()
        if attempt.pid == 0:
            try:
                os.setsid()
                self._only(orders, writer)
                held, send, said = dict(vars(self)), sender(writer, attempt.token), list[Any]()
                vars(self).clear()  # what pytest's configuration knows leads to no test
                self.items, held["items"][0].session.items, self.said = [], [], said
                run_fork(held["job"], attempt.name, held["items"], orders, send, held["before"], said)
            finally:
                os._exit(0)
        os.close(writer)
        os.close(orders)
        attempt.steps = [*range(attempt.at, len(self.items)), None]  # the fork has no copy
        self.begin(attempt, "")
        self.running[attempt.reader] = attempt

    def begin(self, attempt: Attempt, phase: str) -> None:
        """A new stretch of time, with a limit of its own."""
        attempt.phase, attempt.started, attempt.idle = phase, time.monotonic(), 0.0
        attempt.seen, attempt.test_cpu = attempt.started, look(attempt.pid)[0] or 0.0
        attempt.seen_cpu = attempt.test_cpu

    def _only(self, *own: int) -> None:
        """A fork keeps no handle but its own two pipes: not the other forks' pipes, not a terminal."""
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        for last, handle in pairwise([2, *sorted(own), 1024]):
            os.closerange(last + 1, handle)

    def listen(self) -> None:
        """Takes what the forks say; ends those that are finished, late or gone."""
        ready = select.select(list(self.running), [], [], POLL)[0]
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
                attempt.note("wrote to the runner's pipe", status="tampered")
        if attempt.heard > MAX_TALK:
            attempt.note("flooded the runner's pipe", status="tampered")

    def take(self, attempt: Attempt, message: dict[str, Any]) -> None:
        kind = message["kind"]
        before = {"load": "", "loaded": "load", "done": "test"}
        if attempt.phase != before.get(kind, attempt.phase):
            raise ValueError(kind)
        if kind == "load":
            self.begin(attempt, "load")
        elif kind == "loaded":
            attempt.used[LOADING] = (look(attempt.pid)[0] or 0.0) - attempt.test_cpu
            self.order(attempt)
        elif kind == "done":
            self.done(attempt, attempt.steps.pop(0), message["name"], message["said"], *verdict(message["rows"]))
        elif kind in ("held", "broken", "tampered"):
            attempt.note(*message["findings"], status=kind)
        else:
            raise ValueError(kind)

    def done(self, attempt: Attempt, step: Any, name: str, said: object, outcome: str, text: str) -> None:
        """A test has ended in the fork: the next one, or one that must fail."""
        if name != attempt.asked:
            raise ValueError(name)
        if not isinstance(step, int) and outcome == "passed":
            return attempt.note("a test that must fail was told to be passed", status="tampered")
        if outcome == "passed" and said != attempt.proof:
            return attempt.note(f"{name} was told to be passed, and has not come to its end", status="tampered")
        if isinstance(step, int):
            used = attempt.used[name] = (look(attempt.pid)[0] or 0.0) - attempt.test_cpu
            attempt.outcomes[name] = [outcome, text]
            attempt.at += 1
            if outcome == "passed" and self.codes[step] and used < TWIN_SECONDS and not attempt.twin:
                attempt.twin = True
                attempt.steps.insert(secrets.randbelow(len(attempt.steps)), Twin(step))
        self.order(attempt)

    def order(self, attempt: Attempt) -> None:
        """Tells the fork what to run next; graded is who has come to the end."""
        if (step := attempt.steps[0]) is None:
            attempt.status = "graded"
            return
        line, attempt.proof = told(step, self.names, self.codes)
        attempt.asked = line["name"]
        with suppress(BrokenPipeError):  # it has ended: what it sends no more says so
            os.write(attempt.orders, f"{json.dumps(line)}\n".encode())
        self.begin(attempt, "test")

    def late(self, attempt: Attempt) -> str:
        """Why a fork must end now, "" while it may go on."""
        now, (cpu, waits) = time.monotonic(), look(attempt.pid)
        if cpu is None:
            most = HANG_FACTOR * self.limits.test_seconds
            return f"more than {most:g} s by the clock" if now - attempt.started > most else ""
        if waits:
            attempt.idle += max(0.0, min(now - attempt.seen, 4 * POLL) - (cpu - attempt.seen_cpu))
        attempt.seen, attempt.seen_cpu = now, cpu
        where = attempt.asked if attempt.phase == "test" else LOADING
        limit = float(self.job["seconds"].get(where, self.limits.test_seconds))
        if limit < cpu - attempt.test_cpu:
            return f"more than {limit:g} s of processor time"
        if attempt.idle > self.limits.test_seconds:
            return f"waited for {self.limits.test_seconds:g} s"
        if attempt.cpu + cpu > self.limits.lab_seconds:
            return f"the lab took more than {self.limits.lab_seconds:g} s of processor time"
        return ""

    def stop(self, attempt: Attempt, late: str) -> None:
        """Ends a fork; where it is not finished, its test is lost and the next fork goes on behind it."""
        attempt.cpu += look(attempt.pid)[0] or 0.0
        end(attempt.pid)
        os.close(attempt.reader)
        os.close(attempt.orders)
        del self.running[attempt.reader]
        shutil.rmtree(Path(self.job["scratch"], attempt.name), ignore_errors=True)
        if attempt.status:
            return
        what = ["timeout", late] if late else ["died", "the process ended"]
        if attempt.phase == "test" and not isinstance(attempt.steps[0], int) and not late:
            return attempt.note("the process ended in a test that must fail", status="tampered")
        loading = attempt.phase != "test"
        where = LOADING if loading or attempt.at >= len(self.names) else self.names[attempt.at]
        attempt.note(f"{where}: {what[1]}")
        if not loading and not isinstance(attempt.steps[0], Twin):  # what such a one tells, its test has told before
            attempt.outcomes[where] = what
            attempt.at += 1
        attempt.stops += 1
        spent = loading or attempt.stops >= self.limits.stops or late.startswith("the lab")
        if attempt.at < len(self.names) and not spent:
            self.fork(attempt)
            return
        for name in self.names[attempt.at :]:
            attempt.outcomes[name] = what if loading else ["not run", "too many tests before it did not end"]
        attempt.status = "graded"


def main(root: str, lab: str, *allowed: str) -> int:
    """Entry of the process."""
    args = [str(Path(lab) / "test_lab.py"), "-q", "-s", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    args += ["-m", "not gpu and not real_vllm", "--rootdir", root, "--tb=native"]
    return int(pytest.main(args, plugins=[Server(list(allowed))]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
