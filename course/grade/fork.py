"""One fork: a submission's file under one lab's tests, each outcome sent as soon as it is known.

A message is one line, ``TOKEN {json}``; the token is drawn for each fork, and a line without it is tampering. Kinds:
``refused`` or ``broken`` (the file is not run), ``load`` and ``loaded``, ``start`` and ``done`` (a test), ``tampered``,
``end``."""

import builtins
import contextlib
import json
import linecache
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.runner import runtestprotocol

from course import labs
from course.grade import kernel
from course.grade.facade import with_guarded_builtins
from course.grade.processes import lower_limits
from course.grade.screen import screen
from course.grade.settings import Limits
from course.grade.watch import Guard, Snapshot

Send = Callable[..., None]


def sender(handle: int, token: str) -> Send:
    """Writes messages into a pipe."""

    def send(kind: str, **fields: Any) -> None:
        os.write(handle, f"{token} {json.dumps({'kind': kind, **fields})}\n".encode())

    return send


def bound(limits: Limits) -> None:
    """Limits that every Unix has; the kernel counts memory on top of what the warm process maps."""
    import resource

    pages = Path("/proc/self/statm")
    mapped = int(pages.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0
    seconds = int(limits.lab_seconds) + 5
    wanted = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: seconds, resource.RLIMIT_FSIZE: 16 << 20}
    wanted |= {resource.RLIMIT_NOFILE: 128, resource.RLIMIT_MEMLOCK: 1 << 20}
    if mapped:
        wanted[resource.RLIMIT_AS] = mapped + (limits.memory_mb << 20)
    lower_limits(wanted)


def wall_off(job: dict[str, Any], scratch: Path, writes: bool) -> None:
    """Kernel walls, those of the job's list that this system has (see ``walls`` in ``grading``)."""
    kernel.drop_privileges()
    if "files" in job["walls"]:
        readable = [Path(job["root"]), *map(Path, job["readable"])]
        kernel.forbid_files(readable, [Path(os.devnull), *([scratch] if writes else [])])
    if "calls" in job["walls"]:
        kernel.forbid_system_calls(chmod=writes)


def run_fork(job: dict[str, Any], name: str, at: int, items: list[pytest.Item], send: Send, before: Snapshot) -> None:
    """The whole life of a fork, from item number ``at`` on; never returns to pytest."""
    limits, lab = Limits(**job["limits"]), Path(job["lab"])
    text = (Path(job["inbox"]) / name).read_bytes()
    scratch = Path(job["scratch"]) / name
    scratch.mkdir(exist_ok=True)
    os.chdir(scratch)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(scratch)
    first_to_go()
    bound(limits)
    wall_off(job, scratch, writes(items))
    source = _decode(text, job, send)
    if source is None:
        return
    starter = (lab / "starter.py").resolve()
    guard = Guard(starter)
    labs.SOURCES[starter] = source
    if not job["trusted"]:
        linecache.cache[str(starter)] = (len(source), None, source.splitlines(True), str(starter))
        labs.SOURCES[starter] = cast(str, with_guarded_builtins(source, str(starter)))  # `compile` takes either
        guard.install([*job["allowed"], *job["own"]], job["plug"])
        before.expect(vars(builtins), "__import__", builtins.__import__)

    def tampered(at_end: bool = False) -> list[str]:
        if job["trusted"]:
            return []
        asked = [f"asked for {what}" for what in guard.found]
        return asked or [f"replaced {what}" for what in before.changes(str(starter), job["own"], at_end)[:10]]

    _run(items, at, starter, send, tampered)


def writes(items: list[pytest.Item]) -> bool:
    """Whether some test of the lab writes files."""
    return any("tmp_path" in getattr(item, "fixturenames", ()) for item in items)


def first_to_go() -> None:
    """Where memory runs out, the system ends a fork, and not the one who grades."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _decode(text: bytes, job: dict[str, Any], send: Send) -> str | None:
    """The source, or None after saying what is wrong with it."""
    try:
        source = text.decode("utf-8-sig")
        if "\0" in source:
            raise ValueError("it holds NUL bytes")
        found = [] if job["trusted"] else screen(source, job["allowed"], job["own"])
    except SyntaxError as error:
        send("broken", message=f"line {error.lineno}: does not parse: {error.msg}")
        return None
    except (ValueError, RecursionError, MemoryError) as error:
        send("broken", message=f"is not a Python text file: {type(error).__name__}: {error}"[:300])
        return None
    if found:
        send("refused" if job["screen"] == "refuse" else "noted", findings=found[:10])
    return None if found and job["screen"] == "refuse" else source or "\n"


def _run(items: list[pytest.Item], at: int, starter: Path, send: Send, tampered: Callable[[bool], list[str]]) -> None:
    send("load")
    _seed(0)
    with contextlib.suppress(labs.LabError):  # a test says it: the fixture loads the file again
        labs.load(starter)
    if found := tampered(True):
        return send("tampered", findings=found)
    send("loaded")
    for index in range(at, len(items)):
        send("start", index=index)
        following = items[index + 1] if index + 1 < len(items) else None
        _seed(index)
        reports = runtestprotocol(items[index], log=False, nextitem=following)
        if found := tampered(following is None):
            return send("tampered", findings=found)
        outcome, message = verdict(reports)
        send("done", index=index, outcome=outcome, message=message)
    send("end")


def _seed(index: int) -> None:
    """What draws from the global generators draws the same on every run."""
    random.seed(index)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(index)


def verdict(reports: list[pytest.TestReport]) -> tuple[str, str]:
    """passed, failed, error, skipped or unwritten, with one line that says why."""
    outcome = "skipped"
    for report in reports:
        if report.failed:
            info = getattr(report, "course", {})
            if info.get("stub") is not None:
                return "unwritten", info["stub"][:300]
            lines = [line for line in str(info.get("message") or report.longreprtext).splitlines() if line.strip()]
            return ("failed" if report.when == "call" else "error"), (lines[0] if lines else "")[:300]
        if report.when == "call":
            outcome = report.outcome if not hasattr(report, "wasxfail") else "skipped"
    return outcome, ""
