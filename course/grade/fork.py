"""One fork: a submission's file under one lab's tests, each outcome sent as soon as it is known.

A message is one line, ``TOKEN {json}``; the token is drawn for each fork, and a line without it is tampering. Kinds:
``held`` or ``broken`` (the file is not run), ``load`` and ``loaded``, ``done`` (a test that the server has ordered,
with what pytest reports: the server judges), ``tampered``."""

import codecs
import contextlib
import importlib
import io
import itertools
import json
import operator
import os
import random
import sys
import tokenize
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from course import labs
from course.grade import kernel
from course.grade.faults import outside
from course.grade.intake import mark
from course.grade.kernel import lower_limits
from course.grade.language import WORDS, Language
from course.grade.own import Own, install, looked_at
from course.grade.proofs import as_ordered
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


def run_fork(
    job: dict[str, Any],
    name: str,
    items: list[pytest.Item],
    orders: int,
    send: Send,
    before: Snapshot,
    said: list[Any],
) -> None:
    """The whole life of a fork; never returns to pytest. ``orders``: the pipe on which the server says what to run."""
    limits, lab = Limits(**job["limits"]), Path(job["lab"])
    text = (Path(job["inbox"]) / name).read_bytes()
    scratch = Path(job["scratch"]) / name
    scratch.mkdir(exist_ok=True)
    os.chdir(scratch)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(scratch)
    with contextlib.suppress(OSError):  # where memory runs out, the system ends a fork, and not the one who grades
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    bound(limits)
    wall_off(job, scratch, any("tmp_path" in getattr(item, "fixturenames", ()) for item in items))
    if (source := _decode(text, job, send)) is None:
        return
    starter = (lab / "starter.py").resolve()
    guard = Guard(starter)
    labs.SOURCES[starter] = source
    own = _own(job, text, source, starter)
    if not job["trusted"]:
        sys.addaudithook(guard.hook)

    def bad() -> bool:
        asked = [f"asked for {what}" for what in guard.found]
        found = [] if job["trusted"] else asked or [f"replaced {what}" for what in before.changes()[:10]]
        if found:
            send("tampered", findings=found)
        elif own.found:
            send("held", findings=_held(own.found, text))
        return bool(found or own.found)

    _run(items, orders, starter, send, bad, said)


def _own(job: dict[str, Any], text: bytes, source: str, starter: Path) -> Own:
    """Has what nobody has read run with a look at each object of which it may not know whose it is."""
    language = Language(job["allowed"], job["own"]) if "own" in job else Language()
    own = Own(labs.module_name(starter), language)
    if not (job["trusted"] or mark(text) in job["accepted"]):
        install(own)
        tree = looked_at(source, language)

        def of_tree(source: Any, name: str, *args: Any, **more: Any) -> Any:
            return compile(tree if name == str(starter) else source, name, *args, **more)

        vars(labs)["compile"] = of_tree
    return own


def _decode(text: bytes, job: dict[str, Any], send: Send) -> str | None:
    """The source, or None after saying what is wrong with it."""
    source, kind = "", "held"
    try:
        source, unread = as_python(text)
        if unread:
            send(kind, findings=_held([unread], text))
            return None
        read = job["trusted"] or mark(text) in job["accepted"]
        found = [] if read else outside(source, Language(job["allowed"], job["own"]))
    except SyntaxError as error:
        found, kind = [f"line {error.lineno}: does not parse: {error.msg}"], "broken"
    except (ValueError, RecursionError, MemoryError) as error:
        found, kind = [f"is not a Python text file: {type(error).__name__}: {error}"[:300]], "broken"
    if found:
        send(kind, findings=_held(found, text) if kind == "held" else found)
    return None if found else source or "\n"


_KNOWN = """
    utf-8 utf-8-sig ascii iso8859-1 iso8859-2 iso8859-5 iso8859-9 iso8859-15 cp1250 cp1251 cp1252 cp1254 cp932 cp949
    cp950 koi8-r koi8-u gbk gb2312 gb18030 big5 euc_jp euc_kr shift_jis
"""


def as_python(data: bytes) -> tuple[str, str]:
    """A file's text as Python reads it (PEP 263), and why a human must look at it instead: "" where none must. Raises
    SyntaxError or ValueError where Python reads none."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "", "1: is UTF-16 text, which Python does not read; save it as UTF-8"
    said, lines = tokenize.detect_encoding(io.BytesIO(data).readline)
    name = codecs.lookup(said).name
    if name not in _KNOWN.split():
        return "", f"{len(lines)}: declares the encoding {said}"
    source = io.TextIOWrapper(io.BytesIO(data), name, newline="").read()
    if "\0" in source:
        raise ValueError("it holds NUL bytes")
    return source, ""


def _held(found: list[str], text: bytes) -> list[str]:
    """What a human reads about a file that is not run."""
    more = [f"and {len(found) - 10} lines more"] if len(found) > 10 else []
    said = f"not graded before someone has read it; to let it run: accepted = [{mark(text)!r}]"
    return [*(f"starter.py:{one}" for one in found[:10]), *more, said]


def _run(items: list[Any], orders: int, starter: Path, send: Send, bad: Callable[[], bool], said: list[Any]) -> None:
    send("load")
    _seed(0)
    with contextlib.suppress(labs.LabError):  # a test says it: the fixture loads the file again
        labs.load(starter)
    if bad():
        return
    send("loaded")
    for order in map(json.loads, os.fdopen(orders)):
        name, index = order["name"], order["index"]
        item = as_ordered(items[index], order["code"]) if order["code"] else items[index]
        said[:] = [None]
        _seed(index)
        other = None if len(items) == 1 else items[index - 1]  # of the same module: its fixtures stay
        reports = runtestprotocol(item, log=False, nextitem=other)
        if bad():
            return
        send(
            "done",
            name=name,
            said=said[0] if isinstance(said[0], str) else None,
            rows=[_facts(report) for report in reports],
        )


def _seed(index: int) -> None:
    """What draws from the global generators draws the same on every run."""
    random.seed(index)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(index)


def prepare(allowed: Collection[str]) -> None:
    """Loads what submissions use, to be watched. From here on generators without a seed are the same in every fork."""
    fresh = itertools.count()

    class Seeded(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(next(fresh) if x is None else x)

    Seeded.__module__ = random.__name__  # a snapshot looks at it there
    random.Random = Seeded  # type: ignore[misc]
    if "mini_vllm" in allowed:
        operator.attrgetter(*(engine := importlib.import_module("mini_vllm")).__all__)(engine)
        for module in map(importlib.import_module, WORDS["watch"]["importers"].split()):
            vars(module).update(importlib=SimpleNamespace(import_module=of_the_engine), import_module=of_the_engine)
    if "torch" in sys.modules:  # some calls import it late: seconds in each fork, and a folder that a fork has not
        importlib.import_module("torch._dynamo")
    if "numpy" in allowed or "numpy" in sys.modules:
        rng, _ = map(importlib.import_module, ("numpy.random", "numpy.testing"))
        draw = rng.default_rng
        rng.default_rng = lambda seed=None: draw([next(fresh)] if seed is None else seed)  # type: ignore[attr-defined]


def of_the_engine(name: str) -> ModuleType:
    """A module that a setting of the engine names: in a graded lab one of the engine's."""
    if name.partition(".")[0] != "mini_vllm":
        raise PermissionError(f"not allowed in a graded lab: the module {name!r} by a setting of the engine")
    return importlib.import_module(name)


def _facts(report: pytest.TestReport) -> dict[str, Any]:
    """What a report says; the server judges."""
    info = getattr(report, "course", {})
    text = str(info.get("message") or report.longreprtext) if report.failed else ""
    lines = [line for line in text.splitlines() if line.strip()]
    stub = info.get("stub") if report.failed else None
    return {"when": report.when, "outcome": report.outcome, "xfail": hasattr(report, "wasxfail"),
            "stub": stub, "message": (lines[0] if lines else "")[:300]}  # fmt: skip
