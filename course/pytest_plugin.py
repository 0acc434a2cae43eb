"""The course's pytest plugin, loaded by the root ``conftest.py``.

* ``impl``: the lab's module under test (``solution.py``, or ``starter.py`` where ``LAB_IMPL=starter``);
* markers ``gpu``, ``real_vllm``, ``provided`` and a time limit for every lab test;
* an unwritten function is reported in one line instead of a traceback (``--tb=long`` or any other ``--tb`` brings the
  traceback back);
* another failure ends with what the test says: the README's claim, got and expected, a changed signature, the loop
  that never ends (``course.teach``);
* one line per lab at the end.

``COURSE_REPORT=FILE`` writes every lab test's outcome as JSON; ``COURSE_NO_RECORD=1`` keeps the run out of
``.course/progress.json``.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course import labs, teach
from course.late import TimeoutFailed, pytest_timeout_cancel_timer, pytest_timeout_set_timer  # noqa: F401 (hooks)
from course.outcomes import Outcomes, remember

MARKERS = (
    "gpu: needs an NVIDIA GPU (skipped without one)",
    "real_vllm: needs the CPU build of the pinned release (`course vllm`)",
    "provided: tests what starter.py brings along, so it passes there too",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    try:
        labs.wanted_impl()
        labs.all_labs()
    except labs.LabError as error:
        raise pytest.UsageError(str(error)) from None
    python = labs.vllm_python()
    if python is not None and not python.is_file():
        raise pytest.UsageError(
            f"COURSE_VLLM_PYTHON={str(python)!r} is not a file: name the interpreter that has vLLM, or unset it"
        )
    if labs.wanted_impl() == "starter":  # the line per lab says it all; a list of every red test would bury it
        config.option.reportchars = config.option.reportchars.replace("a", "sxXE").replace("f", "")
    config.pluginmanager.register(LabReporter(config), "course-labs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each lab test its time limit, unless it sets one itself."""
    for item in items:
        lab = labs.lab_of(item.nodeid)
        if lab is None or item.get_closest_marker("timeout"):
            continue
        real = item.get_closest_marker("real_vllm") is not None
        item.add_marker(pytest.mark.timeout(max(lab.timeout, labs.REAL_VLLM_TIMEOUT) if real else lab.timeout))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_cuda():
        pytest.skip("needs an NVIDIA GPU and torch with CUDA")
    if item.get_closest_marker("real_vllm") and labs.vllm_python() is None:
        pytest.skip("needs the real vLLM: run `course vllm`")


@functools.cache
def has_cuda() -> bool:
    """Whether torch sees a CUDA device; torch is imported only when a GPU test asks."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture(scope="module")
def impl(request: pytest.FixtureRequest) -> ModuleType:
    """The lab's module under test: ``solution.py``, or ``starter.py`` where ``LAB_IMPL=starter``."""
    try:
        return labs.load(request.path.parent / f"{labs.wanted_impl()}.py")
    except labs.LabError as error:
        reason = str(error)
    except pytest.fail.Exception:
        reason = f"{labs.wanted_impl()}.py did not finish loading: does a loop run for ever at module level?"
    pytest.fail(reason, pytrace=False)


@pytest.fixture(scope="session")
def real_vllm_python() -> Path:
    """The interpreter that has the real vLLM; skips where `course vllm` has not been run."""
    python = labs.vllm_python()
    if python is None:
        pytest.skip("needs the real vLLM: run `course vllm`")
    return python


def unwritten(error: BaseException | None, place: Path) -> tuple[str, str, Path, int] | None:
    """(sentence, function, file, line) where an error comes from a stub in ``place`` (a file or a folder), else None.

    Looks through ``pytest.raises(..., match=)`` too, whose complaint has the stub's error as its context.
    """
    while error is not None:
        trace, frames = error.__traceback__, []
        while trace is not None:
            frames.append((trace.tb_frame.f_code, trace.tb_lineno))
            trace = trace.tb_next
        if isinstance(error, NotImplementedError) and frames:
            code, line = frames[-1]
            file = Path(code.co_filename)
            if place in (file, *file.parents):
                return str(error), getattr(code, "co_qualname", code.co_name), file, line
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    lab = labs.lab_of(item.nodeid)
    if lab is None:
        return
    provided = item.get_closest_marker("provided") is not None
    info: dict[str, Any] = {"learner": "impl" in getattr(item, "fixturenames", ()) and not provided}
    report.course = info
    if not report.failed or call.excinfo is None:
        return
    info["message"] = call.excinfo.exconly()[:500]
    stub = unwritten(call.excinfo.value, item.path.parent.resolve() / "starter.py")
    if stub is None:
        lines = explain(item, call.excinfo)
        report.sections += [(teach.TITLE, "\n".join(lines))] if lines else []
        return
    sentence, function, _, line = stub
    info["stub"] = sentence
    if item.config.getoption("tbstyle", "auto") == "auto":
        where = f"{lab.phase}/labs/{lab.slug}/starter.py:{line}"
        report.longrepr = f"not written yet: {function}, {where}\n    {sentence}"


COMPARED = pytest.StashKey[tuple[str, object, object]]()


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> None:
    """Notes the sides of the comparison that failed last; pytest's own explanation stays."""
    config.stash[COMPARED] = (op, left, right)


def explain(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> list[str]:
    """What a failure that is no stub says besides its traceback; see ``course.teach``."""
    compared = item.config.stash.get(COMPARED, None)
    item.config.stash[COMPARED] = ("", None, None)
    lines = [claim] if (claim := teach.claim_of(item.path, item.name)) else []
    last = error.traceback[-1]
    if error.errisinstance(AssertionError) and compared and compared[0] and Path(last.path) == item.path:
        lines.append(teach.comparison(*compared, teach.assert_source(item.path, last.lineno + 1)))
    folder = item.path.parent
    if labs.wanted_impl() == "starter" and error.errisinstance((TypeError, AttributeError)):
        lines += teach.changed_signatures(folder / "starter.py", folder / "solution.py")
    if error.errisinstance(TimeoutFailed) or error.exconly().startswith("Failed: Timeout"):
        lines += filter(None, [teach.hang(error.tb, folder, item.path)])
    return lines


class LabReporter:
    """Counts outcomes by lab, prints them, keeps the record (on xdist: in the controller)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes = Outcomes()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.add(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = self.outcomes.lines()
        if lines:
            terminalreporter.section(f"labs ({labs.wanted_impl()}.py)")
        for line in lines:
            terminalreporter.line(line)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            return
        say_once(self.config)
        if target := os.environ.get("COURSE_REPORT"):
            Path(target).write_text(self.outcomes.as_json(), encoding="utf-8")
        if self.outcomes.labs and labs.wanted_impl() == "starter" and whole(self.config):
            remember(self.config.rootpath, self.outcomes.labs.values())


def say_once(config: pytest.Config) -> None:
    """An unwritten function is shown once, with the number of tests that wait for it, however many tests call it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    groups: dict[str, list[Any]] = {}
    for report in reporter.stats.get("failed", ()) if reporter else ():
        if isinstance(report.longrepr, str) and report.longrepr.startswith("not written yet: "):
            groups.setdefault(report.longrepr, []).append(report)
    for text, (first, *others) in groups.items():
        if others:
            first.longrepr = f"{text}\n    ({len(others) + 1} tests wait for it)"
        for report in others:
            report._pdbshown = True  # pytest's mark for "shown already": counted, and not in the list of failures


def whole(config: pytest.Config) -> bool:
    """Whether the run covered whole labs, so that its outcome is worth recording."""
    chosen = any("::" in arg for arg in config.args) or config.getoption("keyword", "") or config.getoption("lf", False)
    marked = config.getoption("markexpr", "") not in ("", "not gpu")
    return not (chosen or marked or os.environ.get("COURSE_NO_RECORD"))
