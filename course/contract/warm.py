"""Runs one lab's tests on many versions of its ``solution.py``, fast: imports and collection once, then one fork per
version.

``run_variants`` starts a process of its own (``python -m course.contract.warm``): nothing of the caller is forked."""

import contextlib
import json
import os
import select
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from course import labs
from course.contract import zygote
from course.grade.kernel import end, look
from course.labs import DEFAULT_TIMEOUT, ROOT, LabError

MEMORY_LIMIT = 8 << 30  # bytes of address space for one version: a runaway list ends here


@dataclass(frozen=True)
class Variant:
    """One version of a solution. ``tests`` to run, all where empty; ``stop_early``: the first failure is enough."""

    name: str
    source: str
    tests: tuple[str, ...] = ()
    stop_early: bool = True


@dataclass(frozen=True)
class Verdict:
    """``outcome`` is passed, failed, timeout, died, or empty (no such test); ``lacks``: test without lesson -> why."""

    name: str
    outcome: str
    failed: tuple[str, ...] = field(default=())
    seconds: float = 0.0
    lacks: tuple[str, ...] = field(default=())


def run_variants(folder: Path, variants: Sequence[Variant], jobs: int = 0, timeout: float = 10.0) -> list[Verdict]:
    """Runs the lab's tests on each variant, ``timeout`` processor seconds each. Raises :class:`LabError`."""
    if not hasattr(os, "fork"):
        raise LabError("this check forks; run it on Linux, macOS or WSL")
    with tempfile.TemporaryDirectory() as temp:
        job, out = Path(temp, "job.json"), Path(temp, "out.json")
        spec = {"folder": str(folder.resolve()), "jobs": jobs or os.cpu_count() or 1, "timeout": timeout}
        job.write_text(json.dumps(spec | {"variants": [asdict(v) for v in variants]}), encoding="utf-8")
        env = environment(COURSE_LIMIT=os.environ.get("COURSE_LIMIT") or str(DEFAULT_TIMEOUT))
        done = zygote.python("course.contract.warm", [str(job), str(out)], ROOT, env)
        if not out.is_file():
            raise LabError(f"{folder.name}: its tests do not run: {(done.stdout + done.stderr).strip()[-800:]}")
        rows = json.loads(out.read_text(encoding="utf-8"))
    return [Verdict(**(row | {name: tuple(row[name]) for name in ("failed", "lacks")})) for row in rows]


def environment(**extra: str) -> dict[str, str]:
    """For a pytest run that the machinery starts: this repository first, no settings of the caller, no record."""
    callers = ("LAB_IMPL", "COURSE_REPORT", "COURSE_DURATIONS", "PYTEST_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(callers)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    fixed = {"COURSE_NO_RECORD": "1", "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**clean, "PYTHONPATH": path, **fixed, **extra}


class _Forker:
    """A pytest plugin that runs the collected tests once per variant, each time in a fork."""

    def __init__(self, job: dict[str, Any], out: Path) -> None:
        self.job, self.out = job, out
        self.solution = Path(job["folder"]) / "solution.py"
        self.failed: list[str] = []
        self.lacks: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            name = report.nodeid.split("::", 1)[1]
            self.failed.append(name)
            if why := getattr(report, "course", {}).get("lacks"):
                self.lacks.append(f"{name.partition('[')[0]}: {why}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.items:
            return True
        waiting = [Variant(**(v | {"tests": tuple(v["tests"])})) for v in reversed(self.job["variants"])]
        order = [v.name for v in reversed(waiting)]
        verdicts: dict[str, Verdict] = {}
        running: dict[int, tuple[Variant, int, float]] = {}
        while waiting or running:
            while waiting and len(running) < self.job["jobs"]:
                variant = waiting.pop()
                reader, pid = self.start(session, variant)
                running[reader] = (variant, pid, time.monotonic())
            for verdict, reader in self.finished(running):
                verdicts[verdict.name] = verdict
                del running[reader]
        self.out.write_text(json.dumps([asdict(verdicts[name]) for name in order]), encoding="utf-8")
        return True

    def start(self, session: pytest.Session, variant: Variant) -> tuple[int, int]:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(reader)
            outcome = "died"
            try:
                outcome = self.run_one(session, variant)
            finally:
                os.write(writer, json.dumps([outcome, self.failed, self.lacks]).encode())
                os._exit(0)
        os.close(writer)
        return reader, pid

    def run_one(self, session: pytest.Session, variant: Variant) -> str:
        _limit_memory()
        labs.SOURCES[self.solution] = variant.source
        items = [i for i in session.items if not variant.tests or {i.name, i.name.split("[")[0]} & {*variant.tests}]
        for item, following in zip(items, [*items[1:], None], strict=False):
            failed = {name.partition("[")[0] for name in self.failed}
            if isinstance(item.parent, pytest.Module) and item.name.partition("[")[0] in failed:
                continue  # one case is enough
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed and variant.stop_early:
                break
        return "failed" if self.failed else ("passed" if items else "empty")

    def finished(self, running: dict[int, tuple[Variant, int, float]]) -> list[tuple[Verdict, int]]:
        ready = select.select(list(running), [], [], 0.05)[0]
        done = []
        for reader, (variant, pid, start) in running.items():
            seconds = time.monotonic() - start
            limit = self.job["timeout"]
            computed = look(pid)[0]  # on a busy machine a process gets on slowly, and that is no hang
            late = seconds > limit and (computed is None or computed > limit or seconds > 10 * limit)
            if reader not in ready and not late:
                continue
            text = os.read(reader, 1 << 20) if reader in ready else b""
            outcome, failed, lacks = json.loads(text) if text else ("timeout" if late else "died", [], [])
            end(pid)
            os.close(reader)
            done.append((Verdict(variant.name, outcome, tuple(failed), round(seconds, 3), tuple(lacks)), reader))
        return done


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def main(job_file: str, out_file: str) -> int:
    """Entry of the process: collects the lab's tests and forks."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    args = [str(Path(job["folder"]) / "test_lab.py"), "-q", "-s", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    args += ["-m", "not gpu and not real_vllm"]
    return int(pytest.main(args, plugins=[_Forker(job, Path(out_file))]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
