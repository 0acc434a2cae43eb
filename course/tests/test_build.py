"""`course build`: the table is true, stubs are exact, a workspace with work in it is safe."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree

import pytest

from course.contract import zygote
from course.labs import ROOT, LabError, functions, stub_message
from course.workspace import build

pytestmark = pytest.mark.maintainer

ALL = [(phase.number, one) for phase in build.phase_builds().values() for one in phase.builds]


@pytest.mark.parametrize(("number", "one"), ALL, ids=[one.symbol for _, one in ALL])
def test_symbols_exist_and_are_documented(number: int, one: build.Build) -> None:
    found = dict(functions(ast.parse((ROOT / one.file).read_text(encoding="utf-8"))))
    assert one.name in found, f"{one.file} has no function {one.name}: mend course/build.toml"
    assert ast.get_docstring(found[one.name]), f"{one.symbol} has no docstring to say what it should do"
    assert one.tests and one.message.endswith(".")


def named(phases: list[build.PhaseBuild]) -> list[str]:
    """The tests of phases, each once."""
    return list(dict.fromkeys(test for phase in phases for test in phase.tests))


def firsts() -> list[str]:
    """One test of each phase."""
    return [phase.tests[0] for phase in build.phase_builds().values()]


def forked(target: Path, tests: list[str], *more: str) -> CompletedProcess[str]:
    """``build.run_tests`` by a fork: a process from the start is in ``test_the_learners_path``."""
    args, env = build.pytest_of(target, tests)
    env.pop("CI", None)  # with it pytest repeats each message in its summary
    return zygote.python("pytest", [*more, *args], target, env)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but a copy of the engine: no checkpoint beside it. Who changes a file puts it back."""
    folder = tmp_path_factory.mktemp("finished")
    build.write_copy(folder, ())
    return folder


_SECOND = itertools.count(1_000_000_000)


@contextlib.contextmanager
def put_back(files: Iterable[Path]) -> Iterator[None]:
    """Files of ``finished`` may be changed in here. Each change has a second of its own: Python tells what it has
    compiled by second and size."""
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    try:
        yield
    finally:
        for path, (text, when) in before.items():
            path.write_bytes(text)
            os.utime(path, ns=(when, when))


def changed(path: Path) -> None:
    """Gives a changed file a second that no version of it had."""
    second = next(_SECOND)
    os.utime(path, (second, second))


@pytest.mark.parametrize(
    "tests",
    [firsts(), pytest.param(named(list(build.phase_builds().values())), marks=pytest.mark.slow)],
    ids=["one a phase", "all"],
)
def test_named_tests_are_green_in_a_finished_workspace(tests: list[str], finished: Path) -> None:
    done = forked(finished, tests)
    assert done.returncode == 0, done.stdout[-3000:]


Met = dict[str, tuple[str, str]]
"""Test -> file and last name of the function that it found not written."""


def red(target: Path, builds: list[build.Build], report: Path) -> Met:
    """Asserts that every test of ``builds`` fails in a copy with all their stubs, and says which one it met first."""
    tests = list(dict.fromkeys(test for one in builds for test in one.tests))
    with put_back({target / one.file for one in builds}):
        for path in build.put_stubs(target, tuple(builds)):
            changed(path)
        done = forked(target, tests, f"--junitxml={report}")
    out = done.stdout
    failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR "))]  # or its fixture is red
    stubs = {name for one in builds for name in (one.name, one.name.split(".")[-1])}
    told = sum(out.count(f"\nnot written yet: {name},") for name in stubs)
    folded = [int(number) for number in re.findall(r"\((\d+) tests wait for it\)", out)]
    assert done.returncode == 1 and "ERROR collecting" not in out and " passed" not in out, out[-3000:]
    assert 0 < len(failed) <= told - len(folded) + sum(folded), out[-3000:]
    met = {}
    for case in ElementTree.parse(report).iter("testcase"):
        said = " ".join(each.get("message", "") for each in case)
        if found := re.search(r"not written yet: (\S+), [^/ ]+/(\S+):\d+", said):
            met[f"{case.get('classname')}.{case.get('name')}"] = found[2], found[1].split(".")[-1]
    return met


def proven(one: build.Build, met: Met) -> bool:
    """Whether each test of a build met its own stub before any other."""
    for test in one.tests:
        path, *names = test.split("::")
        key = ".".join([path.removesuffix(".py").replace("/", "."), *names])
        mine = [stub for name, stub in met.items() if name == key or name.startswith((f"{key}[", f"{key}."))]
        if not mine or {*mine} != {(one.file.as_posix(), one.name.split(".")[-1])}:
            return False
    return True


def each_red(target: Path, builds: list[build.Build], report: Path) -> None:
    """All functions at once. A test that meets the stub it is named for has proved it, whatever else is not written:
    then that function is written, and the others are tried again; where none is proved, in two halves."""
    met = red(target, builds, report)
    if len(builds) == 1:
        return
    names = Counter((one.file, one.name.split(".")[-1]) for one in builds)
    rest = [one for one in builds if names[one.file, one.name.split(".")[-1]] > 1 or not proven(one, met)]
    half = len(rest) // 2 if len(rest) == len(builds) else len(rest)
    for part in filter(None, (rest[:half], rest[half:])):
        each_red(target, part, report)


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_named_tests_are_red_on_each_stub(quarter: int, finished: Path, tmp_path: Path) -> None:
    each_red(finished, [one for number, one in ALL if number // 5 == quarter], tmp_path / "report.xml")


SOURCE = '''import os  # kept


class A:
    @staticmethod
    def f(x: int,
          y: str = "a") -> int:
        """Says what to do.

        At length.
        """
        # a comment that goes
        if x:
            return 1
        return 2  # also this

    # a comment that stays

    def g(self): return 3

x = [1,
     2]
'''


def test_a_stub_changes_nothing_else() -> None:
    made = build.stub(SOURCE, {"A.f": 'Return "one" or two.'})
    assert made == SOURCE.replace(
        """        # a comment that goes
        if x:
            return 1
        return 2  # also this
""",
        """        raise NotImplementedError("Return \\"one\\" or two.")
""",
    )
    (node,) = (node for name, node in functions(ast.parse(made)) if name == "A.f")
    assert stub_message(node) == 'Return "one" or two.'
    with pytest.raises(LabError, match=r"no function called A\.h"):
        build.stub(SOURCE, {"A.h": "x"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "mini_vllm"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text('def double(x):\n    """Twice x."""\n    return 2 * x\n')
    (package / "tests" / "test_core.py").write_text(
        "from mini_vllm.core import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
    )
    return tmp_path


PHASE = build.PhaseBuild(
    7,
    "doubling",
    (build.Build("mini_vllm.core:double", "Return twice x.", ("mini_vllm/tests/test_core.py::test_double",)),),
)


def test_the_learners_path(root: Path) -> None:
    assert build.make_workspace(PHASE, root).kept is None
    done = build.run_tests(root / "workspace", PHASE.tests, capture=True)
    assert done.returncode == 1
    assert "not written yet: double, workspace/mini_vllm/core.py:3\n    Return twice x." in done.stdout
    core = root / "workspace" / "mini_vllm" / "core.py"
    core.write_text(core.read_text().replace('raise NotImplementedError("Return twice x.")', "return x + x"))
    assert forked(root / "workspace", PHASE.tests).returncode == 0


def test_an_edited_workspace_is_not_overwritten(root: Path) -> None:
    build.make_workspace(PHASE, root)
    assert build.make_workspace(PHASE, root).kept is None
    core = root / "workspace" / "mini_vllm" / "core.py"
    core.write_text("mine = 1\n")
    with pytest.raises(LabError, match=r"holds work of yours \(mini_vllm/core.py\)"):
        build.make_workspace(PHASE, root)
    kept = build.make_workspace(PHASE, root, force=True).kept
    assert kept is not None and (kept / "mini_vllm" / "core.py").read_text() == "mine = 1\n"
    assert "NotImplementedError" in core.read_text()


NEXT = build.PhaseBuild(
    8,
    "tripling",
    (build.Build("mini_vllm.core:triple", "Return three times x.", ("mini_vllm/tests/test_core.py::test_triple",)),),
)


@pytest.fixture
def two_phases(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine with functions of phase 7 (`double`, `half`) and of phase 8 (`triple`) in one file."""
    core = root / "mini_vllm" / "core.py"
    core.write_text(
        core.read_text()
        + '\n\ndef half(x):\n    """Half of x."""\n    return x / 2\n'
        + '\n\ndef triple(x):\n    """Three times x."""\n    return 3 * x\n'
    )
    half = build.Build("mini_vllm.core:half", "Return half of x.", ("mini_vllm/tests/test_core.py::test_half",))
    first = build.PhaseBuild(7, "doubling", (*PHASE.builds, half))
    monkeypatch.setattr(build, "phase_builds", lambda: {7: first, 8: NEXT})
    build.make_workspace(first, root)
    work = root / "workspace" / "mini_vllm" / "core.py"
    mine = "return _helper(x)\n\n\ndef _helper(x):\n    return x + x  # mine"
    work.write_text(work.read_text().replace('raise NotImplementedError("Return twice x.")', mine))
    return root


def test_earlier_work_comes_along(two_phases: Path) -> None:
    made = build.make_workspace(NEXT, two_phases)
    assert made.carried.written == ["mini_vllm.core:double"] and made.carried.filled == ["mini_vllm.core:half"]
    source = (two_phases / "workspace" / "mini_vllm" / "core.py").read_text()
    assert "# mine" in source and "_helper(x)" in source and "return x / 2" in source
    assert source.count("NotImplementedError") == 1 and "Return three times x." in source
    assert made.kept is not None and "# mine" in (made.kept / "mini_vllm" / "core.py").read_text()


def test_earlier_work_comes_along_twice(two_phases: Path) -> None:
    """A file that was carried and not touched since is hers all the same."""
    build.make_workspace(NEXT, two_phases)
    other = two_phases / "workspace" / "mini_vllm" / "extra.py"
    other.write_text("hers = 1\n")
    last = build.PhaseBuild(9, "nothing", ())
    made = build.make_workspace(last, two_phases)
    assert made.carried.written == ["mini_vllm.core:double"]
    assert made.carried.filled == ["mini_vllm.core:triple"]
    source = (two_phases / "workspace" / "mini_vllm" / "core.py").read_text()
    assert "# mine" in source and "NotImplementedError" not in source
    assert (two_phases / "workspace" / "mini_vllm" / "extra.py").read_text() == "hers = 1\n"


def test_where_the_engine_has_changed_only_functions_come_along(two_phases: Path) -> None:
    core = two_phases / "mini_vllm" / "core.py"
    core.write_text(core.read_text() + "\n\nNEW = True\n")
    work = two_phases / "workspace" / "mini_vllm" / "core.py"
    work.write_text(work.read_text().replace("return _helper(x)", "return x + x  # mine"))
    build.make_workspace(NEXT, two_phases)
    source = work.read_text()
    assert "NEW = True" in source and "return x + x  # mine" in source and "return x / 2" in source


def test_work_that_is_not_python_is_told_and_kept(two_phases: Path) -> None:
    work = two_phases / "workspace" / "mini_vllm" / "core.py"
    work.write_text(work.read_text() + "def broken(:\n")
    with pytest.raises(LabError, match=r"workspace/mini_vllm/core.py, line \d+: .*; mend it before you go on"):
        build.make_workspace(NEXT, two_phases)
    assert "def broken" in work.read_text()


def test_a_foreign_folder_called_workspace_is_safe(root: Path) -> None:
    (root / "workspace").mkdir()
    (root / "workspace" / "notes.txt").write_text("mine")
    with pytest.raises(LabError, match=r"build\.json is missing or damaged, .* `course build NN --force` puts all of"):
        build.make_workspace(PHASE, root)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"phase": 3}', '{"phase":3,"files":{},"engine":3}'])
def test_a_damaged_record_is_told(root: Path, text: str) -> None:
    build.make_workspace(PHASE, root)
    (root / ".course" / "workspace-1").mkdir()
    (root / "workspace" / "build.json").write_text(text)
    with pytest.raises(LabError, match=r"missing or damaged.* Copies of former workspaces: \.course/workspace-1$"):
        build.make_workspace(PHASE, root)
    assert build.make_workspace(PHASE, root, force=True).kept == root / ".course" / "workspace-2"
    record = '{"phase":7,"files":{},"engine":null}'
    (root / "workspace" / "build.json").write_text(record)
    with pytest.raises(LabError, match="holds work of yours"):
        build.make_workspace(PHASE, root)


def test_wherever_it_is_ended_her_work_goes_on(two_phases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed, real = [], Path.rename
    for steps in range(3):

        def rename(path: Path, to: Path, steps: int = steps) -> Path:
            if len(renamed) == steps:
                raise KeyboardInterrupt
            renamed.append(to)
            return real(path, to)

        monkeypatch.setattr(Path, "rename", rename)
        with contextlib.suppress(KeyboardInterrupt):
            build.make_workspace(NEXT, two_phases)
        monkeypatch.setattr(Path, "rename", real)
        renamed.clear()
        made = build.make_workspace(NEXT, two_phases)
        assert made.carried.written == ["mini_vllm.core:double"]
        assert "# mine" in (two_phases / "workspace" / "mini_vllm" / "core.py").read_text()


def test_a_second_build_at_once_and_what_cannot_be_written_are_told(root: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (root / ".course").mkdir()
    with (root / ".course" / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LabError, match="another `course build` is at work here"):
            build.make_workspace(PHASE, root)
    (root / ".course" / "build.lock").unlink()
    (root / ".course").rmdir()
    (root / ".course").write_text("a file")
    with pytest.raises(LabError, match=r"\.course: File exists; put that right"):
        build.make_workspace(PHASE, root)


def test_a_phase_without_a_build_is_told() -> None:
    with pytest.raises(LabError, match=r"phase 20 has no mini-build; there are: 00 \(the sampler\), 01"):
        build.phase_build(20)


SLICE = "mini_vllm/tests/core/sched/test_golden_slice.py::test_the_first_recorded_workloads_go_the_same_way"
BROKEN = {
    "hits are cached again": (
        "core/single_type_kv_cache_manager.py",
        "self.num_cached_block[request_id] = num_skipped + len(hits)",
        "self.num_cached_block[request_id] = num_skipped",
        r"RuntimeError: block \d+ already has a hash.*\n(.*\n)+.*\(the same in \d+ more: ",
    ),
    "caching is checked by one caller only": (
        "core/kv_cache_manager.py",
        """        if self.enable_caching:
            self.coordinator.cache_blocks(request, num_tokens)
""",
        "        self.coordinator.cache_blocks(request, num_tokens)\n",
        "IndexError: ",
    ),
    "the victim goes to the back": (
        "core/sched/request_table.py",
        "self.waiting.prepend_request(request)",
        "self.waiting.add_request(request)",
        r"vLLM 0\.22\.1 +mini_vllm\n(.*\n)+.*\(the same in \d+ more: ",
    ),
    "an admitted request has no hits in its table": (
        "core/sched/scheduler.py",
        "step.add(request, num_new_tokens, self.kv_cache_manager.get_blocks(request.request_id))",
        "held, size = self.kv_cache_manager.get_blocks(request.request_id), self.kv_cache_manager.block_size\n"
        "        new = tuple(group[num_computed_tokens // size :] for group in held.blocks)\n"
        "        step.add(request, num_new_tokens, type(held)(new))",
        r"vLLM 0\.22\.1 +mini_vllm\nnew ",
    ),
    "one token too many is planned": (
        "core/sched/scheduler.py",
        "if num_new_tokens <= 0 or (request.num_output_placeholders and request.will_reach_max_tokens):",
        "if num_new_tokens <= 0:",
        r"vLLM 0\.22\.1 +mini_vllm\ntokens ",
    ),
}
FAST = "the victim goes to the back"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == FAST else pytest.mark.slow) for n in BROKEN])
def test_a_broken_engine_is_told_where_it_parts_from_the_real_one(name: str, finished: Path) -> None:
    """Engines that the builds' own tests let pass; the phases 02 and 03 both run this test."""
    file, old, new, said = BROKEN[name]
    path = finished / "mini_vllm" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file} has changed: adapt this test"
    assert all(SLICE in build.phase_builds()[number].tests for number in (2, 3))
    with put_back([path]):
        path.write_text(text.replace(old, new), encoding="utf-8")
        changed(path)
        done = forked(finished, [SLICE])
    assert done.returncode == 1 and re.search(said, done.stdout), done.stdout
    assert " of the first 40 workloads recorded from vLLM 0.22.1 go another way here." in done.stdout
    assert "Traceback" not in done.stdout and done.stdout.count("\n") < 60


def test_what_fails_for_one_reason_is_told_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = "".join(f"\n\ndef test_{n}():\n    assert double({n}) == {2 * n}\n" for n in range(5))
    (root / "mini_vllm" / "tests" / "test_core.py").write_text(f"from mini_vllm.core import double\n{tests}")
    build.make_workspace(PHASE, root)
    names = ["mini_vllm/tests/test_core.py"]
    out = forked(root / "workspace", names).stdout
    assert out.count("Return twice x.") == 1 and "(5 tests wait for it)" in out and "5 failed" in out
    core = root / "workspace" / "mini_vllm" / "core.py"
    core.write_text(core.read_text().replace('raise NotImplementedError("Return twice x.")', "return x.y"))
    out = forked(root / "workspace", names).stdout
    assert out.count("E       AttributeError: ") == 1 and "(5 tests fail there)" in out and "5 failed" in out
