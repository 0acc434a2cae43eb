"""Pytest plugin of ``workspace/``: makes sure that the copy is what runs, reports unwritten functions in one line, and
tells what fails for one reason once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from course.failures.shown import arrange
from course.pytest_plugin import unwritten


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stops where the tests would run on the installed engine instead of the copy."""
    import mini_vllm

    here = session.config.rootpath.resolve()
    if here not in Path(mini_vllm.__file__ or "").resolve().parents:
        other = f"mini_vllm comes from {mini_vllm.__file__}, not from {here}"
        raise pytest.UsageError(f"{other}: run pytest inside workspace/")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    options, here = item.config.option, item.config.rootpath.resolve()
    told = call.excinfo is not None and options.tbstyle == "auto"
    if stub := unwritten(call.excinfo.value, here) if told and call.excinfo else None:
        options.tbstyle = "native"  # one line takes its place: pytest need not parse every file on the way
    outcome: Any = yield
    if stub:
        options.tbstyle = "auto"
    report = outcome.get_result()
    if not told or not report.failed or call.excinfo is None:
        return
    last = call.excinfo.traceback[-1]
    if stub:
        sentence, function, file, line = stub
        place = f"{file.relative_to(here.parent).as_posix()}:{line}"
        report.longrepr = f"not written yet: {function}, {place}\n    {sentence}"
        report.course = {"group": report.longrepr}
    elif here in Path(last.path).parents and "tests" not in Path(last.path).relative_to(here).parts:
        report.course = {"group": f"{last.path}:{last.lineno} {call.excinfo.typename}", "waits": "tests fail there"}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One cause is shown once; the names of all red tests stand in the summary."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.config.option.tbstyle == "auto":
        arrange(reporter.stats, {})
