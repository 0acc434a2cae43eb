"""The contract of every lab of the repository; and the contract's checks themselves, on labs that break it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from course.contract import mistakes, mutation, rules
from course.labs import ROOT, LabError, edited_starters, lab_folders, lab_of
from course.pages import shape
from course.tests.conftest import FIRST, SECOND, SOLUTION, STARTER

pytestmark = pytest.mark.maintainer


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def clean(problems: list) -> None:
    assert not problems, "\n" + "\n".join(map(str, problems))


def untouched(folder: Path) -> bool:
    return folder / "starter.py" not in edited_starters()


@pytest.mark.slow
@pytest.mark.parametrize("phase", shape.phases(), ids=named)
def test_starters_are_red_for_the_right_reason(phase: Path) -> None:
    folders = [folder for folder in lab_folders() if folder.parents[1] == phase and untouched(folder)]
    if not folders:
        pytest.skip("the starters hold your work")
    clean(rules.check_starters(folders))


@pytest.mark.slow
@pytest.mark.parametrize("folder", lab_folders(), ids=named)
def test_listed_mistakes_are_caught(folder: Path) -> None:
    clean(mistakes.check_mistakes(folder))


# the checks themselves

PATCH = """Test: test_negative
Mistake: forgets to refuse a negative step
--- a/solution.py
+++ b/solution.py
@@ -1,3 +1,1 @@
-        if by < 0:
-            raise ValueError("by must not be negative")
         self.n += by
"""
README = """# Lab

## What the tests prove

| Test | Claim |
|---|---|
| `test_negative` | a negative step is refused |

## Common mistakes

- **It forgets to refuse** a negative step.

## Hints

none
"""


@pytest.fixture
def lab(small_course: Path) -> Path:
    (small_course / FIRST / "README.md").write_text(README)
    return small_course / FIRST


def test_a_failure_without_its_claim_is_named(lab: Path, small_course: Path) -> None:
    (lab / "README.md").write_text(README.replace("`test_negative`", "`test_positive`"))
    [problem] = mistakes.check_mistakes(lab, write_patch(small_course, PATCH))
    assert problem.text.startswith("test_negative: no row of the README's table")


def write_patch(small_course: Path, text: str) -> Path:
    folder = small_course / "mistakes" / "phase-00" / Path(FIRST).name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "01-negative.patch").write_text(text)
    return small_course / "mistakes"


def test_a_good_lab_passes(lab: Path, small_course: Path) -> None:
    assert rules.check_lab(lab) == []
    assert rules.check_starters([small_course / "phase-00-foundations" / "labs"], small_course) == []
    assert mistakes.check_mistakes(lab, write_patch(small_course, PATCH)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "starter.py",
            "def double(x: int)",
            "def double(y: int)",
            "double is not as in solution.py: 'y: int' here, 'x: int' there",
        ),
        ("starter.py", "Twice x.", "Two times x.", "double is not as in solution.py"),
        ("starter.py", "n: int = 0", "n: int = 1", "Counter.n is not as in solution.py"),
        ("starter.py", "text.upper()", "text.lower()", "shout is neither a stub nor what solution.py has"),
        ("starter.py", '"Return twice x."', '"No."', "must say what to do"),
        ("starter.py", "def shout", "def scream", "lacks shout"),
        ("solution.py", "return 2 * x", 'raise NotImplementedError("Later on.")', "double is not written"),
        ("solution.py", "from __future__ import annotations", "import numpy", "labs.toml allows nothing"),
        ("solution.py", "from __future__ import annotations", "from mini_vllm import *", "import by *"),
        ("test_lab.py", ', match="negative"', "", "without match="),
    ],
)
def test_a_breach_is_named(file: str, old: str, new: str, message: str, lab: Path) -> None:
    text = (lab / file).read_text()
    assert old in text
    (lab / file).write_text(text.replace(old, new))
    assert any(message in p.text for p in rules.check_lab(lab))


def test_a_property_and_its_setter_are_two_functions(lab: Path) -> None:
    code = """

class Box:
    \"\"\"A box.\"\"\"

    @property
    def size(self) -> int:
        \"\"\"How big.\"\"\"
        return self._size

    @size.setter
    def size(self, value: int) -> None:
        self._size = value
"""
    for name in ("starter.py", "solution.py"):
        (lab / name).write_text((lab / name).read_text() + code)
    assert rules.check_lab(lab) == []
    text = (lab / "starter.py").read_text()
    (lab / "starter.py").write_text(text.replace("value: int", "value: float"))
    assert any("Box.size.setter" in p.text for p in rules.check_lab(lab))


def test_wrong_reasons_to_be_red(small_course: Path) -> None:
    first, second = small_course / FIRST / "starter.py", small_course / SECOND / "starter.py"
    first.write_text(STARTER.replace('raise NotImplementedError("Return twice x.")', "return 1 // 0"))
    second.write_text("import nothing_of_that_name\n")
    problems = rules.check_starters([small_course / "phase-00-foundations" / "labs"], small_course)
    found = [p.text for p in problems]
    lines = [p.line for p in problems]  # one problem for all tests that share a fault, where the first of them stands
    assert sorted(lines) == [7, 17, 24]
    assert any("test_runtime_error" in text and "ZeroDivisionError" in text for text in found)
    assert any(
        text.startswith("red for the wrong reason") and "cannot import" in text and "test_add, " in text
        for text in found
    )


def test_a_test_that_asks_nothing_is_found(small_course: Path) -> None:
    path = small_course / FIRST / "test_lab.py"
    path.write_text(path.read_text() + "\n\ndef test_nothing(impl):\n    assert impl\n")
    found = [p.text for p in rules.check_starters([small_course / FIRST], small_course)]
    assert found == [
        "passes on the starter (make it touch the learner's code, or mark it @pytest.mark.provided): test_nothing"
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Test: test_negative", "Test: test_add", "test_add does not catch this mistake"),
        ("Test: test_negative", "Test: test_other", "no test called test_other"),
        ("forgets to refuse", "forgot to refuse", 'the README\'s "Common mistakes" does not say'),
        ("by < 0", "by < 1", "does not stand in solution.py"),
        ("Test: test_negative\n", "", "must begin with the lines"),
    ],
)
def test_a_bad_patch_is_named(old: str, new: str, message: str, lab: Path, small_course: Path) -> None:
    base = write_patch(small_course, PATCH.replace(old, new))
    assert any(message in p.text for p in mistakes.check_mistakes(lab, base))
    read = any(message in p.text for p in mistakes.check_mistakes(lab, base, run=False))
    assert read == ("catch" not in message), "what can be read is said without a run"


def test_a_listed_mistake_without_a_patch_is_named(lab: Path, small_course: Path) -> None:
    (lab / "README.md").write_text(README.replace("## Hints", "- Adds twice.\n\n## Hints"))
    found = mistakes.check_mistakes(lab, write_patch(small_course, PATCH))
    assert [p.text for p in found] == ["no patch in course/mistakes for: adds twice."]
    (lab / "README.md").write_text(README.replace("## Hints", "- Adds twice. <!-- no-patch: a habit -->\n\n## Hints"))
    assert mistakes.check_mistakes(lab, small_course / "mistakes") == []


def test_patches_apply_or_say_why() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -2,2 +2,2 @@\n b\n-c\n+C\n@@ -4 +4,2 @@\n d\n+e\n"
    assert mistakes.apply_patch("a\nb\nc\nd\n", diff) == "a\nb\nC\nd\ne\n"
    assert mistakes.apply_patch("new\na\nb\nc\nd\n", diff) == "new\na\nb\nC\nd\ne\n"
    with pytest.raises(LabError, match="stands in 2 places"):
        mistakes.apply_patch("x\nb\nb\n", "@@ -9 +9 @@\n-b\n+c\n")
    with pytest.raises(LabError, match="make the patch anew: 'c'"):  # b, the line before it, is there
        mistakes.apply_patch("a\nb\nC\n", diff)
    with pytest.raises(LabError, match="no hunk"):
        mistakes.apply_patch("x\n", "nothing")


def test_mutants_are_made_of_learner_code_only(lab: Path) -> None:
    names = {m.name for m in mutation.mutants(SOLUTION, rules.learner_functions(lab))}
    assert {
        "Counter.add: by < 0 -> by <= 0",
        "Counter.add: by < 0 -> by >= 0",
        "Counter.add: self.n += by -> pass",
        "double: 2 * x -> 2 + x",
        "double: 2 -> 3",
        "double: return 2 * x -> return None",
    } <= names
    assert not any("shout" in name for name in names)


def test_mutation_score_names_the_survivors(lab: Path) -> None:
    score = mutation.score(lab)
    assert 0.5 < score.share < 1
    survivors = {m.name for m in score.survivors}
    assert "Counter.add: by < 0 -> by <= 0" in survivors
    assert "Counter.add: self.n += by -> pass" not in survivors


def test_one_case_of_a_test_that_fails_is_enough(lab: Path) -> None:
    from course.contract.warm import Variant, run_variants

    check = "def test_many(impl, n):\n    assert impl.double(n) == 2 * n or n < 2\n"
    cases = f'@pytest.mark.parametrize("n", range(9))\n{check}'
    (lab / "test_lab.py").write_text(f"{(lab / 'test_lab.py').read_text()}\n\n{cases}")
    wrong = SOLUTION.replace("return 2 * x", "return 2 + x")
    (verdict,) = run_variants(lab, [Variant("wrong", wrong, stop_early=False)])
    assert verdict.failed == ("test_many[3]",)


def test_an_endless_or_greedy_mutant_does_not_hang(lab: Path) -> None:
    from course.contract.warm import Variant, run_variants

    loop = SOLUTION.replace("return 2 * x", "import time\n    while True: time.sleep(1)")
    dead = SOLUTION.replace("return 2 * x", "import os; os._exit(1)")
    (verdict,) = run_variants(lab, [Variant("loop", loop)], timeout=1)
    assert verdict.outcome == "timeout"
    verdicts = run_variants(lab, [Variant("dead", dead), Variant("good", SOLUTION)], timeout=300)
    assert [v.outcome for v in verdicts] == ["died", "passed"]


def test_a_file_that_two_labs_share_is_one_file():
    """Each lab brings along what its tests need, so that it can be graded by itself; the copies are the same."""
    copies = list(ROOT.glob("phase-*/labs/*/triton_count.py"))
    assert len(copies) == 4 and len({path.read_bytes() for path in copies}) == 1, copies


@pytest.mark.slow
def test_readmes_count_their_tests_and_cases() -> None:
    """ "16 tests (25 cases)", where a README says so: functions in its file, and what pytest makes of them."""
    said = {}
    for folder in lab_folders():
        if (lab := lab_of(folder)) is None or lab.missing_modules:
            continue  # its tests cannot be counted here
        if match := re.search(r"<summary>(\d+) tests(?: \((\d+) cases\))?,", (folder / "README.md").read_text("utf-8")):
            said[named(folder)] = (int(match[1]), int(match[2] or match[1]))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *said]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    found = {}
    for lab in said:
        cases = [line.partition("::")[2] for line in listed if line.startswith(f"{lab}/")]
        found[lab] = (len({case.partition("[")[0] for case in cases}), len(cases))
    assert said == found
