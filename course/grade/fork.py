"""One fork: a submission's file under one lab's tests, each outcome sent as soon as it is known.

A message is one line, ``TOKEN {json}``; the token is drawn for each fork, and a line without it is tampering. Kinds:
``refused`` or ``broken`` (the file is not run), ``start`` and ``done`` (a test), ``tampered``, ``end``.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from course import labs
from course.grade import kernel
from course.grade.screen import screen
from course.grade.settings import Limits
from course.grade.watch import Guard, changes

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
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 16 << 20,
        resource.RLIMIT_NOFILE: 128,
    }
    if mapped:
        wanted[resource.RLIMIT_AS] = mapped + (limits.memory_mb << 20)
    for which, value in wanted.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def wall_off(job: dict[str, Any], scratch: Path, writes: bool) -> None:
    """Kernel walls, those of the job's list that this system has (see ``walls`` in the server)."""
    if "files" in job["walls"]:
        readable = [Path(job["root"]), *map(Path, job["readable"])]
        kernel.forbid_files(readable, [Path(os.devnull), *([scratch] if writes else [])])
    if "calls" in job["walls"]:
        kernel.forbid_system_calls(chmod=writes)


def run_fork(job: dict[str, Any], name: str, at: int, items: list[pytest.Item], send: Send, before: Any) -> None:
    """The whole life of a fork, from item number ``at`` on; never returns to pytest."""
    limits, lab = Limits(**job["limits"]), Path(job["lab"])
    text = (Path(job["inbox"]) / name).read_bytes()
    scratch = Path(job["scratch"]) / name
    scratch.mkdir(exist_ok=True)
    os.chdir(scratch)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(scratch)
    random.seed(0)
    bound(limits)
    wall_off(job, scratch, any("tmp_path" in getattr(item, "fixturenames", ()) for item in items))
    source = _decode(text, job, send)
    if source is None:
        return
    starter = (lab / "starter.py").resolve()
    labs.SOURCES[starter] = source
    guard = Guard(starter)
    if not job["trusted"]:
        guard.install([*job["allowed"], *job["own"]])
        before = before | {("builtins", "__import__"): (builtins.__import__, guard.code)}
    _run(items, at, guard, send, {} if job["trusted"] else before)


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


def _run(items: list[pytest.Item], at: int, guard: Guard, send: Send, before: Any) -> None:
    for index in range(at, len(items)):
        send("start", index=index)
        following = items[index + 1] if index + 1 < len(items) else None
        random.seed(index)
        _seed_numpy(index)
        reports = runtestprotocol(items[index], log=False, nextitem=following)
        if guard.found or (before and (changed := changes(before))):
            text = [f"asked for {what}" for what in guard.found] or [f"replaced {what}" for what in changed[:10]]
            send("tampered", index=index, findings=text)
            return
        outcome, message = verdict(reports)
        send("done", index=index, outcome=outcome, message=message)
    send("end")


def _seed_numpy(index: int) -> None:
    """Tests that draw from numpy's global generator draw the same on every run."""
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
