"""`course watch`: runs a lab's tests again each time one of its files is saved.

A worker waits with pytest, numpy and the collected tests loaded, so that only the tests themselves take time after a
save; it serves one run, and the next worker gets ready while the learner types. No fork, so it works on Windows too.
Saves are seen by looking at the two files every 0.05 s."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from course.labs import ROOT, Lab, LabError, lab_of
from course.loop import record
from course.loop.outcomes import digest
from course.pytest_plugin import has_cuda
from mini_vllm.kernels.interpreter import triton_or_skip

LOOK_EVERY = 0.05  # seconds between looks at the files
PATIENCE = 1.0  # seconds for which an emptied file is taken for one that is being written
ENOUGH = 0.4  # seconds of processor time after which a run that is red already may end
LIMIT = 5.0  # seconds for one test, where its lab allows more: somebody is waiting, and a save starts it again
FILES = ("starter.py", "test_lab.py")
EMPTY = digest(b"")


def state(folder: Path) -> tuple[str, ...]:
    """Digests of the files whose change asks for a run; "" for one that is missing (an editor may be replacing it)."""
    return tuple(digest(folder / name) for name in FILES)


class Saves:
    """Says when a folder's files were saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known = state(folder)

    def __call__(self) -> bool:
        """Whether a file's content changed since the last yes."""
        now, until = state(self.folder), time.monotonic() + PATIENCE
        while now[0] == EMPTY and time.monotonic() < until:  # most editors empty a file before they write it
            time.sleep(0.02)
            now = state(self.folder)
        if now == self.known or not now[0]:
            return False
        self.known = now
        return True


class Worker:
    """A process that has collected a lab's tests and waits for the word to run them."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "LAB_IMPL": "starter", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
        env.setdefault("COURSE_LIMIT", str(LIMIT))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.tests = state(folder)[1]
        command = [sys.executable, "-m", "course.loop.watch", str(folder)]
        self.process = subprocess.Popen(command, cwd=folder.resolve().parents[2], env=env, stdin=subprocess.PIPE)

    def go(self) -> None:
        """Lets it run; a worker that died early (tests that do not collect) has said why already."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(b"go\n")
            self.process.stdin.close()

    def end(self) -> None:
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


def watch(
    saves: Saves,
    note: Callable[[str], None],
    runs: int = 0,
    idle: Callable[[float], bool | None] = time.sleep,
    stay: bool = False,
    now: bool = True,
) -> bool:
    """Runs the tests ``now`` and after each save, which ends a run; whether they passed last. It ends when all pass,
    unless it is to ``stay``, after so many ``runs`` (0: never), or when ``idle``, which waits so many seconds, says so.
    """
    folder, worker, count, since, saved = saves.folder, Worker(saves.folder), 0, "the start", time.monotonic()
    code: int | None = 1
    try:
        while True:
            if now:
                note("running")
                worker.go()
                while (code := worker.process.poll()) is None and not saves():
                    if idle(LOOK_EVERY):
                        return False
                worker.end()
                count += 1
                seconds = f"{time.monotonic() - saved:.1f} s after {since}"
                verdict = "red" if code else "all pass"
                note("saved again: starting over" if code is None else f"{verdict}, {seconds}")
                if code is not None and ((code == 0 and not stay) or count == runs):
                    return code == 0
                worker = Worker(folder)
            if code is not None:
                note("waiting")
                while not saves():
                    if idle(LOOK_EVERY):
                        return code == 0
            now, since, saved = True, "the save", _saved(folder)
            if worker.process.poll() is not None or worker.tests != state(folder)[1]:
                worker.end()
                worker = Worker(folder)
    finally:
        worker.end()


def _saved(folder: Path) -> float:
    """When ``starter.py`` was saved, on the monotonic clock; now, where its time says nothing."""
    try:
        ago = time.time() - (folder / FILES[0]).stat().st_mtime
    except OSError:
        ago = 0.0
    return time.monotonic() - (ago if 0 <= ago < 2 else 0.0)


class _Waits:
    """A pytest plugin: everything is collected, then nothing runs until a line comes through the pipe. Tests whose
    failure was no stub's in the run before come first, and a run with such a failure ends after ``ENOUGH`` seconds of
    work: nobody waits for the rest of slow tests to read it."""

    def __init__(self, gate: IO[bytes], lab: Lab | None) -> None:
        self.gate, self.key = gate, lab.key if lab else ""
        self.red: list[str] = []
        self.since, self.left = 0.0, 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if any(item.get_closest_marker("gpu") for item in session.items):
            has_cuda()  # imports torch: seconds that are better spent before the save
        if not self.gate.readline():  # whoever started this worker is gone
            os._exit(0)
        before = record.recall("red", session.config.rootpath).get(self.key, [])
        session.items.sort(key=lambda item: item.name not in before)
        self.since, self.left = time.process_time(), len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and getattr(report, "course", {}).get("stub") is None:
            self.red.append(report.nodeid.rpartition("::")[2])

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.left -= 1
        if self.red and self.left and time.process_time() - self.since > ENOUGH:
            item.session.shouldfail = f"red; tests not run yet: {self.left}"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not os.environ.get("COURSE_NO_RECORD"):
            record.remember("red", self.key, self.red[:50], session.config.rootpath)


def main(folder: str) -> None:
    """Entry of a worker: imports what the lab may import, collects its tests, waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the watcher, which ends its workers
    gate = os.fdopen(os.dup(0), "rb", buffering=0)  # pytest takes the file descriptor 0 for itself
    lab = lab_of(Path(folder) / "starter.py")
    for module in lab.allowed_imports if lab else ():
        with contextlib.suppress(Exception, pytest.skip.Exception):
            triton_or_skip() if module == "triton" else importlib.import_module(module)
    args = ["-qq", "-p", "pytest_timeout", "-p", "no:cacheprovider", str(Path(folder) / "test_lab.py")]
    code = int(pytest.main(args, plugins=[_Waits(gate, lab)]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the learner waits: no clearing up of what ends anyway


def check(folder: Path) -> None:
    """Raises :class:`LabError` where there is nothing to watch."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise LabError(f"{folder.name} lacks {', '.join(missing)}; `course reset` brings starter.py back")


if __name__ == "__main__":
    main(sys.argv[1])
