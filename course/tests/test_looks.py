"""A red run: the hint of its first red test, and the listed mistake that it looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.contract import mistakes, rules, warm
from course.labs import Lab, LabError, lab_of
from course.loop import hints, learner, looks, outcomes, record
from course.tests.conftest import FIRST, SOLUTION, STARTER, Run

pytestmark = pytest.mark.maintainer

README = """# Lab

## Hints

<details><summary>Hint 1: adding</summary>
<!-- hint: test_add -->

Use `n`.
</details>
<details><summary>Hint 2: refusing</summary>

First of all. <!-- hint: test_negative,
test_add -->
</details>
<details><summary>Hint 3: anything</summary>

Read it again.
</details>
"""
PATCH = """Test: test_negative
Mistake: {words}
--- a/solution.py
+++ b/solution.py
@@ -1,3 +1,1 @@
-        if by < 0:
-            raise ValueError("by must not be negative")
         self.n += by
"""
OTHER = """Test: test_add
Mistake: adds nothing
--- a/solution.py
+++ b/solution.py
@@ -1,1 +1,1 @@
-        self.n += by
+        self.n += 0
"""
HANG = OTHER.replace("adds nothing", "never ends").replace("+        self.n += 0", "+        import os; os._exit(3)")
HALF = STARTER.replace('raise NotImplementedError("Refuse a negative step, then add it to n.")', "return self.n")


@pytest.fixture
def lab(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab with hints and two listed mistakes, in the place where the verbs work."""
    folder = small_course / FIRST
    (folder / "README.md").write_text(README, encoding="utf-8")
    patches = small_course / "mistakes" / "phase-00" / "lab-01"
    patches.mkdir(parents=True)
    for name, text in (("01-deaf", PATCH.format(words="refuses nothing")), ("02-lazy", OTHER), ("03-dies", HANG)):
        (patches / f"{name}.patch").write_text(text, encoding="utf-8")
    for module in (hints, record, learner, looks):
        monkeypatch.setattr(module, "ROOT", small_course)
    for function in (record.recall, record.remember):
        monkeypatch.setattr(function, "__defaults__", (small_course,))
    monkeypatch.setattr(hints.red_tests, "__defaults__", (small_course,))
    monkeypatch.setattr(hints.next_hints, "__defaults__", (False, small_course))
    monkeypatch.setattr(mistakes.patches, "__defaults__", (small_course / "mistakes",))
    monkeypatch.setattr(Lab, "folder", property(lambda self: small_course / FIRST))
    found = lab_of(folder)
    assert found is not None
    return found


def titles(lab: Lab, times: int) -> list[str]:
    return [hint.title for _ in range(times) for _, hint in hints.next_hints(lab)[0]]


def test_hints_follow_the_first_red_test(lab: Lab, small_course: Path, run: Run) -> None:
    (small_course / FIRST / "starter.py").write_text(HALF)
    assert run("-q", FIRST, LAB_IMPL="starter").returncode == 1
    row = outcomes.recall(small_course)[lab.key]
    assert row["red"] == ["test_add", "test_negative"] and row["open"] == ["test_runtime_error_does_not_hide_a_stub"]
    assert titles(lab, 4) == ["adding", "refusing", "anything"]
    (small_course / FIRST / "starter.py").write_text(HALF.replace("return self.n", "self.n += by; return self.n", 1))
    run("-q", FIRST, LAB_IMPL="starter")
    record.remember("hints", lab.key, [])
    assert titles(lab, 4) == ["refusing", "adding", "anything"]
    assert hints.next_hints(lab, again=True)[0][0][1].text == "Use `n`."
    assert all("<!--" not in hint.text for _, hint in hints.next_hints(lab, again=True)[0])


def test_without_a_run_hints_come_in_order_and_an_odd_record_is_passed_over(lab: Lab) -> None:
    assert titles(lab, 4) == ["adding", "refusing", "anything"]
    record.remember("hints", lab.key, {"what": 1})
    assert titles(lab, 1) == ["adding"]


def test_a_hint_names_tests_that_are_there(lab: Lab, small_course: Path) -> None:
    assert rules.check_hints(small_course / FIRST) == []
    (small_course / FIRST / "README.md").write_text(README.replace("test_negative", "test_gone"))
    (problem,) = rules.check_hints(small_course / FIRST)
    assert problem.text == "a hint names test_gone, which is no test of the lab"


def wrong(small_course: Path, run: Run, text: str) -> None:
    (small_course / FIRST / "starter.py").write_text(text)
    run("-q", FIRST, LAB_IMPL="starter")


REFUSES = '        if by < 0:\n            raise ValueError("by must not be negative")\n'


def test_a_red_run_is_told_what_it_looks_like(
    lab: Lab, small_course: Path, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(small_course, run, STARTER)
    assert looks.looks_like(lab) == [], "nothing is written"
    wrong(small_course, run, SOLUTION.replace(REFUSES, ""))
    assert looks.looks_like(lab) == ["refuses nothing"]
    learner.say_looks(lab)
    assert "this looks like *refuses nothing* (the README's common mistakes)" in capsys.readouterr().out
    monkeypatch.setattr(looks, "run_variants", None)  # the patterns are known by now
    stub = '    raise NotImplementedError("Return twice x.")\n'
    half = SOLUTION.replace(REFUSES, "").replace("    return 2 * x\n", stub)
    wrong(small_course, run, half)
    assert outcomes.recall(small_course)[lab.key]["open"], "one function is still to be written"
    assert looks.looks_like(lab) == ["refuses nothing"], "of the open tests nothing is known"
    (small_course / FIRST / "starter.py").write_text(half + "# and a thought\n")
    assert looks.looks_like(lab) == [], "that run was of another file"


def test_another_lab_or_another_system_says_nothing(
    lab: Lab, small_course: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(small_course, run, SOLUTION.replace(REFUSES, ""))

    def no_fork(*args: object, **more: object) -> list[warm.Verdict]:
        raise LabError("this check forks")

    monkeypatch.setattr(looks, "run_variants", no_fork)
    assert looks.looks_like(lab) == []


def test_one_pattern_of_two_mistakes_names_both_and_a_part_of_one_none() -> None:
    rows = {"a": ["test_1", "test_2"], "b": ["test_1", "test_2"], "c": ["test_3"], "hangs": []}
    assert looks.matching(rows, {"test_1", "test_2"}, set()) == ["a", "b"]
    assert looks.matching(rows, {"test_1"}, set()) == []
    assert looks.matching(rows, {"test_1"}, {"test_2"}) == ["a", "b"]
    assert looks.matching(rows, {"test_1", "test_2", "test_3"}, set()) == []
    assert looks.matching(rows, set(), {"test_3"}) == []
