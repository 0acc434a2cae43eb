"""The patches apply to the pinned tree, are small and described; on the CPU build each is red, then green."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course.labs import ROOT, load

HERE = Path(__file__).resolve().parent
describe = load(HERE / "describe.py")
overlay = load(HERE / "overlay.py")
run_patches = load(HERE / "run_patches.py")
CHANGES = run_patches.changes()
each = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)


@pytest.fixture(scope="module")
def upstream():
    tree = (ROOT / "upstream").resolve()
    if not (tree / "tests").is_dir():
        pytest.skip("needs the pinned tree: run `course upstream`")
    return tree


def test_there_are_enough():
    assert len(CHANGES) >= 6
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d+\]\((.+?)\.md\)", readme, re.MULTILINE) == [change.name for change in CHANGES]


@each
def test_applies_and_is_small(change, upstream, tmp_path):
    overlay.build(tmp_path / "vllm", [change.patch], upstream)
    assert 0 < overlay.changed_lines(change.patch, "vllm/") <= 60
    assert overlay.only_tests(change.patch), "it brings no test"
    assert all((upstream / name).is_file() for name in overlay.touched(change.patch))


def test_all_apply_together(upstream, tmp_path):
    overlay.build(tmp_path / "vllm", [], upstream)
    overlay.build(tmp_path / "all", [change.patch for change in CHANGES], upstream)


def test_a_patch_that_does_not_fit_is_refused(upstream, tmp_path):
    broken = CHANGES[0].patch.replace("stop_string_len = len(stop_str)", "stop_string_len = 1")
    with pytest.raises(overlay.PatchError, match="does not apply to the pinned tree"):
        overlay.build(tmp_path / "vllm", [broken], upstream)


@each
def test_is_described_as_upstream_asks(change):
    assert describe.lint(change.text) == []
    new = set(re.findall(r"^\+ *def (test_\w+)", overlay.only_tests(change.patch), re.MULTILINE))
    assert new and change.tests
    unsigned = [problem for problem in describe.lint(change.text, ready=True) if problem.startswith("Signed-off-by")]
    assert unsigned, "nobody has signed these"


GOOD = """# [Bugfix][Core] Do one thing

## Purpose

A sentence that says what is wrong on the release, for whom it is wrong, how one sees it, and why the change that
follows is the right one and not another.

**Duplicate check.** Searched for the name of the function: it is no duplicate of anything open.

## Test Plan

```bash
.venv/bin/python -m pytest tests/v1/core/test_scheduler.py::test_it -v
```

## Test Result

Before: 1 failed. After: 1 passed, and all others.

**AI assistance.** None was used.

Signed-off-by: Ada Lovelace <ada@engine.net>
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("# [Bugfix][Core] Do one thing", "# Do one thing", "must be one or more prefixes"),
        ("[Bugfix][Core]", "[Fix]", "[Fix] is none of"),
        ("## Purpose", "## Why", "no section '## Purpose'"),
        ("## Test Plan", "## Test Result", "no section '## Test Plan'"),
        ("tests/v1/core/test_scheduler.py::test_it", "", "names a file below tests/"),
        ("Before: 1 failed.", "It works now.", "no test that failed before"),
        ("**Duplicate check.** Searched", "Searched", "no line '**Duplicate check.**'"),
        ("it is no duplicate of anything open", "#1 is open, so nothing is sent", "do not open another"),
        ("**AI assistance.** None was used.", "", "no line '**AI assistance.**'"),
        ("Signed-off-by: ", "By ", "no line 'Signed-off-by: '"),
        ("Ada Lovelace <ada@engine.net>", "your name <your address>", "is no person"),
        ("Before:", "- [ ] The test results\nBefore:", "empty template"),
    ],
)
def test_the_linter_names_what_is_missing(old, new, problem):
    assert describe.lint(GOOD, ready=True) == []
    found = describe.lint(GOOD.replace(old, new), ready=True)
    assert any(problem in line for line in found), found


def test_sections_must_stand_in_order():
    plan = GOOD[GOOD.index("## Test Plan") : GOOD.index("## Test Result")]
    found = describe.lint(GOOD.replace(plan, "").replace("**AI", plan + "**AI"))
    assert any("the template's is Purpose, Test Plan, Test Result" in line for line in found), found


@pytest.mark.slow
@pytest.mark.real_vllm
def test_red_before_and_green_after(upstream, real_vllm_python):
    """All in two runs: the tests alone, then with the patches; `run_patches.py` takes them one by one."""
    tests = list(dict.fromkeys(test for change in CHANGES for test in change.tests))
    new = {name for change in CHANGES for name in re.findall(r"^\+ *def (test_\w+)", change.patch, re.MULTILINE)}
    before = run_patches.run(
        real_vllm_python, [overlay.only_tests(change.patch) for change in CHANGES], tests, upstream
    )
    failed = {re.split(r"::|\[", line.split()[1])[-1 if "[" not in line.split()[1] else -2] for line in before.failures}
    assert new <= failed, f"green without their patch: {sorted(new - failed)}"
    assert all("assert" in line.lower() for line in before.failures if any(name in line for name in new))
    after = run_patches.run(real_vllm_python, [change.patch for change in CHANGES], tests, upstream)
    assert after.passed, after.failures


def test_a_run_is_read_as_pytest_prints_it():
    output = "FAILED tests/a.py::test_b - assert 1 == 2\n1 failed, 2 passed in 3.21s\n"
    run = overlay.Run(1, output)
    assert (run.passed, run.failures, run.summary) == (
        False,
        ["FAILED tests/a.py::test_b - assert 1 == 2"],
        "1 failed, 2 passed",
    )
