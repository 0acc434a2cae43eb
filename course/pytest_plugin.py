"""The course's pytest plugin, loaded by the root ``conftest.py``.

* ``impl``: the lab's module under test (``solution.py``, or ``starter.py`` where ``LAB_IMPL=starter``);
* ``real_run``: the lab's ``real_run.py`` on the real vLLM, for tests that are marked ``real_vllm``;
* ``greedy``: the toy model's answer by the engine as it comes, for labs whose code drives the engine;
* markers ``gpu``, ``real_vllm``, ``provided`` and a time limit for every lab test;
* an unwritten function is reported in one line, and another failure of the learner's code as a short story
  (``course.failures.story``: got, expected, the README's claim, a changed signature, the loop that never ends) instead
  of a traceback; ``--tb=long`` or any other ``--tb`` brings the tracebacks back, the stories below them;
* one cause is shown once, and after a loop that never ends the other tests of the lab are not run;
* one line per lab at the end, and one per thing that is missing here and that tests wait for.

``COURSE_DURATIONS=FILE`` writes what the tests cost (``course.durations``).
``COURSE_REPORT=FILE`` writes every lab test's outcome as JSON; ``COURSE_NO_RECORD=1`` records nothing."""

import functools
import importlib.util
import os
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course import labs
from course.durations import Recorder
from course.failures import left_out, shown, story, teach
from course.failures.late import pytest_timeout_cancel_timer, pytest_timeout_set_timer  # noqa: F401 (hooks)
from course.fixtures import greedy, real_run  # noqa: F401 (fixtures)
from course.loop.outcomes import Outcomes, fitted, remember

MARKERS = (
    "gpu: needs an NVIDIA GPU (skipped without one)",
    "slow: long replays and property runs; left out of the README's second line",
    "maintainer: the tests of the machinery itself (checkers, grader, website); left out of the README's second line",
    "needs_torch: needs torch, transformers, triton, tokenizers or the like (skipped without them)",
    "real_vllm: needs the CPU build of the pinned release (`course vllm`)",
    "provided: tests what starter.py brings along, so it passes there too",
)

PATIENCE = 10


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
        wrong = f"COURSE_VLLM_PYTHON={str(python)!r} is not a file"
        raise pytest.UsageError(f"{wrong}: name the interpreter that has vLLM, or unset it")
    if labs.wanted_impl() == "starter":  # the line per lab says it all; a list of every red test would bury it
        config.option.reportchars = config.option.reportchars.replace("a", "sxX").replace("f", "")
        config.option.disable_warnings |= in_words(config)  # those of the learner's code stand in the stories
    config.pluginmanager.register(LabReporter(config), "course-labs")
    if target := os.environ.get("COURSE_DURATIONS"):
        if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
            del os.environ["COURSE_DURATIONS"]  # a test that starts pytest starts another suite
        config.pluginmanager.register(Recorder(Path(target).resolve()), "course-durations")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each lab test its time limit, unless it sets one itself; more to our solutions, which do not hang."""
    patience = 1 if labs.wanted_impl() == "starter" or os.environ.get("COURSE_LIMIT") else PATIENCE
    for item in items:
        lab = labs.lab_of(item.nodeid)
        if lab is None or item.get_closest_marker("timeout"):
            continue
        real = item.get_closest_marker("real_vllm") is not None
        limit = min(lab.timeout, float(os.environ.get("COURSE_LIMIT") or lab.timeout))
        item.add_marker(pytest.mark.timeout(max(limit, labs.REAL_VLLM_TIMEOUT) if real else limit * patience))


def in_words(config: pytest.Config) -> bool:
    """Whether failures of the learner's code are told in words: no style of traceback is asked for."""
    return labs.wanted_impl() == "starter" and config.getoption("tbstyle", "auto") == "auto"


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[COMPARED] = None
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
    except pytest.fail.Exception as error:
        loop = teach.hang(error.__traceback__, request.path.parent, request.path)
        reason = f"{labs.wanted_impl()}.py did not finish loading; {loop or 'does a loop run for ever?'}"
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
    Looks through ``pytest.raises(..., match=)`` too, whose complaint has the stub's error as its context."""
    seen: set[int] = set()  # causes and contexts may form a ring
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, NotImplementedError) and frames:
            code, line = frames[-1]
            file = Path(code.co_filename)
            if place in (file, *file.parents):
                return str(error), getattr(code, "co_qualname", code.co_name), file, line
        for one in getattr(error, "exceptions", ()):  # a group: hypothesis has met several stubs
            if found := unwritten(one, place):
                return found
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    lab = labs.lab_of(item.nodeid)
    options = item.config.option
    style = options.tbstyle
    if lab and call.excinfo is not None and in_words(item.config) and "impl" in getattr(item, "fixturenames", ()):
        options.tbstyle = "native"  # words take its place: pytest need not parse every file on the way
    outcome: Any = yield
    options.tbstyle = style
    report = outcome.get_result()
    if lab is None:
        return
    provided = item.get_closest_marker("provided") is not None
    info: dict[str, Any] = {"learner": "impl" in getattr(item, "fixturenames", ()) and not provided}
    report.course = info
    if not report.failed or call.excinfo is None:
        return
    info["message"] = call.excinfo.exconly()[:500]
    info["lab"] = lab.name
    tell(item, call, report, info)


def tell(item: pytest.Item, call: pytest.CallInfo[None], report: Any, info: dict[str, Any]) -> None:
    """Notes why a lab test failed, and puts words in the place of its traceback where those are wanted."""
    error = call.excinfo
    assert error is not None
    words = in_words(item.config) and "impl" in getattr(item, "fixturenames", ())
    stub = unwritten(error.value, item.path.parent.resolve() / "starter.py")
    if stub is not None:
        sentence, function, file, line = stub
        info["stub"] = sentence
        if in_words(item.config):
            report.longrepr = f"not written yet: {function}, {teach.short(file)}:{line}\n    {sentence}"
            info["group"] = report.longrepr
    elif call.when == "setup" and isinstance(error.value, pytest.fail.Exception):
        info |= {"load": True, "waits": "tests need the file"}
        info["group"] = str(error.value) if words else None
    elif isinstance(error.value, NotRun):
        info |= {"waits": "tests were not run for that reason"}
        info["group"] = str(error.value)
    elif not item.config.stash.get(NO_STORIES, False):
        told = story.tell(item, error, item.config.stash.get(COMPARED, None))
        info["lacks"] = story.lacks(told)
        if story.timed_out(error) and words and not os.environ.get("COURSE_REPORT"):
            item.config.stash.setdefault(HUNG, {})[info["lab"]] = f"{item.name} {told['headline']}"
        if words:
            info |= {"story": told, "group": told["group"]}
            report.longrepr = "\n".join(story.render(told))
        else:
            report.sections.append((teach.TITLE, "\n".join(story.render(told))))


COMPARED = pytest.StashKey["tuple[str, object, object] | None"]()
HUNG = pytest.StashKey[dict[str, str]]()
NO_STORIES = pytest.StashKey[bool]()
"""Set by the grader: it reads outcomes and one line of each failure."""


class NotRun(pytest.fail.Exception):  # type: ignore[name-defined]
    """A test that was not run, since the one before showed that the learner's code does not come to an end."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """After a test that did not end, no other test of its lab is run: each would take the whole time limit."""
    lab = labs.lab_of(pyfuncitem.nodeid)
    why = pyfuncitem.config.stash.get(HUNG, {}).get(lab.name, "") if lab else ""
    if why and "impl" in pyfuncitem.fixturenames and not pyfuncitem.get_closest_marker("provided"):
        raise NotRun(f"not run, since {why}", pytrace=False)


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> None:
    """Notes the sides of the comparison that failed last; pytest's own explanation stays."""
    config.stash[COMPARED] = (op, left, right)


class LabReporter:
    """Counts outcomes by lab, prints them, keeps the record (on xdist: in the controller)."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes = Outcomes()
        self.warned: dict[str, list[str]] = {}
        self.rest: dict[str, list[str]] = {}
        self.early = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.add(report)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        if Path(warning_message.filename).name == "starter.py":
            place = f"{teach.short(Path(warning_message.filename))}:{warning_message.lineno}"
            text = f"{warning_message.category.__name__}: {warning_message.message}\n{place}"
            self.warned.setdefault(nodeid, []).append(text)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for lab, names in self.rest.items():
            listed = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
            count = f"{len(names)} more red {'tests' if len(names) > 1 else 'test'}"
            terminalreporter.line(f"{count}: {listed} (course test {lab.split()[0]} --full)")
        self._tell_what_was_left_out(terminalreporter)
        lines = self.outcomes.lines()
        if lines:
            terminalreporter.section(f"labs ({labs.wanted_impl()}.py)")
        for line in lines:
            terminalreporter.line(f"{line} (so far)" if self.early else line)

    def _tell_what_was_left_out(self, terminalreporter: Any) -> None:
        """In a line a remedy, where pytest would list more tests than anybody reads; `-rs` asks for the list."""
        skipped = terminalreporter.stats.get("skipped", [])
        if len(skipped) <= left_out.FEW or "s" in self.config.option.reportchars:
            return
        terminalreporter.reportchars = terminalreporter.reportchars.replace("s", "")
        for line in left_out.told(report.longrepr[2] for report in skipped):
            terminalreporter.line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workerinput"):
            return
        self.early = bool(session.shouldfail or session.shouldstop)  # -x, an early end of `course watch`, Ctrl-C
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and in_words(self.config):
            self.rest = shown.arrange(reporter.stats, self.warned)
            told = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
            for each in told if reporter.isatty else ():
                if isinstance(each.longrepr, str):
                    each.longrepr = fitted(each.longrepr, reporter._tw.fullwidth)
        if target := os.environ.get("COURSE_REPORT"):
            Path(target).write_text(self.outcomes.as_json(), encoding="utf-8")
        if self.outcomes.labs and labs.wanted_impl() == "starter" and whole(self.config) and not self.early:
            remember(self.config.rootpath, self.outcomes.labs.values())


def whole(config: pytest.Config) -> bool:
    """Whether the run covered whole labs, so that its outcome is worth recording."""
    chosen = any("::" in arg for arg in config.args) or config.getoption("keyword", "") or config.getoption("lf", False)
    marked = config.getoption("markexpr", "") not in ("", "not gpu")
    return not (chosen or marked or os.environ.get("COURSE_NO_RECORD"))
