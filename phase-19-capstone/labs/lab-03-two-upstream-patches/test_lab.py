"""Lab 19-03: two patches of the pinned release, judged by the release."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from course.labs import load

judge = load(Path(__file__).with_name("judge.py"))
BOTH = ("patch_a", "patch_b")


def turn(impl, name):
    return getattr(impl, name)()


def plans(result):
    return [step["tokens"] for step in result["steps"]]


def test_the_prediction(impl):
    """Made from the code, before anything was run."""
    wanted = {"right": 16, "forgets the whole table": 0, "one block too late": 20, "counts the lost share": 20}
    assert impl.predicted_hits() == wanted


@pytest.mark.parametrize("name", BOTH)
def test_the_diffs_are_small(impl, name):
    diff = turn(impl, name)
    touched = judge.overlay.touched(diff)
    source = [path for path in touched if not path.startswith("tests/")]
    assert source == [judge.SCHEDULER], f"{name} changes {source}; {judge.SCHEDULER} is enough"
    assert len(touched) <= 2, f"{name} touches {touched}: one file of the package and one of tests are enough"
    lines = judge.overlay.changed_lines(diff, "vllm/")
    assert 0 < lines <= judge.MOST_LINES, f"{name} changes {lines} lines of the package, {judge.MOST_LINES} at most"


@pytest.mark.parametrize("name", BOTH)
def test_each_diff_brings_a_test(impl, name):
    diff = turn(impl, name)
    assert judge.new_tests(diff), f"{name} adds no test function below tests/: a fix without one comes back"
    with tempfile.TemporaryDirectory() as folder:
        judge.overlay.build(Path(folder) / "vllm", [diff], judge.upstream())  # it applies cleanly, or raises


def test_no_turn_is_missed(impl):
    missed, _, _ = judge.drive((impl.patch_a(),), "three")
    assert missed["error"] is None, f"with your patch A: {missed['error']}"
    assert missed["steps"][2]["preempted"] == ["v"]
    assert plans(missed)[2] == {"x": 1, "y": 1}, "`y` has a block and a token to compute: it is due in step 3"


def test_a_victim_behind_the_cursor_does_not_move_it(impl):
    _, _, behind = judge.drive((impl.patch_a(),), "three")
    assert behind["error"] is None, f"with your patch A, a victim behind the cursor: {behind['error']}"
    assert plans(behind)[1] == {"a": 1, "b": 1}
    assert [step["twice"] for step in behind["steps"]] == [[]] * len(behind["steps"]), "a request is planned twice"


def test_a_victim_with_a_share_moves_it_once(impl):
    _, unwritten, _ = judge.drive((impl.patch_a(),), "three")
    assert unwritten["error"] is None, f"with your patch A, a victim that has a share: {unwritten['error']}"
    assert plans(unwritten)[2] == {"high": 1}


def test_low_resumes_with_what_was_computed(impl):
    _, unwritten, _ = judge.drive((impl.patch_b(),), "three")
    assert unwritten["error"] is None, f"with your patch B: {unwritten['error']}"
    hits = [step["resumed"]["low"] for step in unwritten["steps"] if "low" in step["resumed"]]
    assert hits, "`low` never resumes"
    assert hits[0] <= 16, f"with your patch B, `low` resumes with a hit of {hits[0]}: only 16 tokens were ever computed"
    assert hits[0] == 16, (
        f"with your patch B, `low` resumes with a hit of {hits[0]}: the 16 tokens that it had computed are right, "
        "and some are now computed again"
    )
    (sixes,) = judge.drive((impl.patch_b(),), "chunks")
    hits = [step["resumed"]["low"] for step in sixes["steps"] if "low" in step["resumed"]]
    assert hits == [16], (
        f"with your patch B and chunks of 6, `low` resumes with {hits}, not [16]: 18 tokens were computed, and a block "
        "that is written in part is none to find"
    )


def test_each_leaves_the_other_defect_alone(impl):
    """One subject a patch: A does not change what is found, B does not change whose turn it is."""
    _, unwritten, _ = judge.drive((impl.patch_a(),), "three")
    missed, _, behind = judge.drive((impl.patch_b(),), "three")
    assert [step["resumed"]["low"] for step in unwritten["steps"] if "low" in step["resumed"]] == [20]
    assert plans(missed)[2] == {"x": 1}
    assert behind == judge.drive((), "three")[2]


@pytest.mark.parametrize("of_each", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_recorded_crowds_end_as_recorded(impl, of_each):
    """Workloads on which a defect shows, in random crowds: with both patches, step by step as recorded."""
    diffs = (impl.patch_a(), impl.patch_b())
    for (seed, steps), mine in zip(judge.recorded(of_each), judge.drive(diffs, f"pressed {of_each}"), strict=True):
        assert mine["error"] is None, f"workload {seed}: {mine['error']}"
        for index, (got, want) in enumerate(zip(mine["steps"], steps, strict=True)):
            for key in ("tokens", "preempted"):
                assert got[key] == want[key], f"workload {seed}, step {index + 1}, {key}"
            assert sorted(got["resumed"]) == want["resumed"], f"workload {seed}, step {index + 1}, resumed"


@pytest.mark.parametrize("crowd", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_fcfs_plans_are_those_of_the_pin(impl, crowd):
    """Both defects are of the priority policy: under the other one nothing may change, hit statistics included."""
    diffs = (impl.patch_a(), impl.patch_b())
    mine, pinned = judge.drive(diffs, f"fcfs {crowd}"), judge.drive((), f"fcfs {crowd}")
    preempted = 0
    for index, (got, want) in enumerate(zip(mine, pinned, strict=True)):
        assert got["error"] == want["error"], f"FCFS workload {index}: got {got['error']}, the pin {want['error']}"
        for number, (here, there) in enumerate(zip(got["steps"], want["steps"], strict=False)):
            assert here == there, f"FCFS workload {index}, step {number + 1}: got {here}, expected {there}, the pin's"
        assert len(got["steps"]) == len(want["steps"])
        preempted += sum(len(step["preempted"]) for step in want["steps"])
    assert preempted > 0, "the workloads must preempt"


def test_the_pull_request_is_fit_to_be_read(impl):
    text = impl.pull_request()
    assert judge.describe.lint(text) == []
    for question in judge.QUESTIONS:
        words = judge.answers(text).get(question, "").split()
        assert len(words) >= 8, f"'### {question}' is answered in {len(words)} words; a reviewer would ask"


@pytest.mark.real_vllm
@pytest.mark.parametrize("name", BOTH)
def test_red_before_and_green_after(impl, name, real_vllm_python):
    """The regression test, on the release itself."""
    diff, upstream = turn(impl, name), judge.upstream()
    package, tests = judge.overlay.package_of(real_vllm_python), judge.new_tests(diff)
    runs = []
    for part in (judge.overlay.only_tests(diff), diff):
        with tempfile.TemporaryDirectory() as folder:
            judge.overlay.build(Path(folder) / "vllm", [part], upstream, package)
            runs.append(judge.overlay.run_tests(real_vllm_python, Path(folder) / "vllm", tests))
    before, after = runs
    assert not before.passed, "your test passes on the pin too: it does not see the defect"
    assert all(line.startswith("FAILED") and "assert" in line.lower() for line in before.failures), before.failures
    assert after.passed, after.failures


@pytest.mark.slow
@pytest.mark.real_vllm
def test_upstreams_own(impl, real_vllm_python):
    """Upstream's tests of the scheduler: none fails with both patches that passes on the pin."""
    diffs = [judge.source_part(impl.patch_a()), judge.source_part(impl.patch_b())]
    package, failures = judge.overlay.package_of(real_vllm_python), []
    for parts in ([], diffs):
        with tempfile.TemporaryDirectory() as folder:
            judge.overlay.build(Path(folder) / "vllm", parts, judge.upstream(), package)
            tests = ["tests/v1/core/test_scheduler.py", "tests/v1/core/test_async_scheduler.py"]
            run = judge.overlay.run_tests(real_vllm_python, Path(folder) / "vllm", tests)
        assert run.code in (0, 1), run.output[-2000:]
        failures.append({line.split()[1] for line in run.failures})
    assert failures[1] <= failures[0], f"with your patches these fail, too: {sorted(failures[1] - failures[0])}"
