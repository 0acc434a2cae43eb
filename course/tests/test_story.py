"""What a learner reads when a lab's test fails: stories, their order, and one cause once."""

from __future__ import annotations

import ast
import signal
from pathlib import Path

import numpy as np
import pytest

from course.contract import mistakes, warm
from course.failures import asserted, shown, story, teach
from course.labs import LabError, load
from course.tests.conftest import FIRST, SECOND, SOLUTION, TESTS, Run
from course.tests.test_loop import README

pytestmark = pytest.mark.maintainer

LIMITS_S = (1, 8, 64)
"""Of a test that never ends: on a busy machine a short one strikes before it is in its loop; then a longer one."""


def limited(seconds: int) -> str:
    """The tests, with a limit each."""
    return f"import pytest\npytestmark = pytest.mark.timeout({seconds})\n{TESTS}"


@pytest.fixture
def starter(small_course: Path) -> Path:
    """The starter of the first lab, which has a README."""
    (small_course / FIRST / "README.md").write_text(README, encoding="utf-8")
    return small_course / FIRST / "starter.py"


def rows(text: str) -> str:
    """The lines of a report without their indentation."""
    return "\n".join(line.strip() for line in text.splitlines())


def test_got_and_expected() -> None:
    assert asserted.rows("==", 4, 6, "assert f(2) == 6") == [("got", "4"), ("expected", "6")]
    assert asserted.rows("==", 6, 4, "assert 6 == f(2)") == [("got", "4"), ("expected", "6")]
    assert asserted.rows("<", 1, 0, "assert 1 < f(2)") == [("got", "0"), ("expected", "something > 1")]
    assert asserted.rows("<", 1, 0, "assert 1 < f(2) < 3") == [("got", "0"), ("expected", "something > 1")]
    assert asserted.rows("<", 4, 3, "assert 1 < f(2) < 3") == [("got", "4"), ("expected", "something < 3")]
    assert asserted.show(np.zeros(90), 256) == "ndarray (90,)" and asserted.show(np.zeros(2), 256).startswith("array(")

    array = type("array", (), {})()  # reprlib takes it for one of the standard library's
    assert asserted.rows("==", array, 1, "assert f() == 1")[0] == ("got", "<array whose repr raises AttributeError>")


@pytest.mark.parametrize(
    ("got", "wanted", "text"),
    [
        ({1, 2}, {2, 3}, "too many: {1}; missing: {3}"),
        ([1, 2, 3], [1, 5, 3], "at index 1: got 2, expected 5"),
        ([1], [1, 2], "1 items, expected 2"),
        ({"a": 1}, {"a": 2}, "under 'a': got 1, expected 2"),
        ({"a": 1, "b": 1}, {"a": 1}, "a key too many: 'b'"),
        ({}, {"a": 1}, "no key 'a'"),
        (np.zeros(3), np.zeros((3, 1)), "shape (3,), expected (3, 1)"),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0]), "1 of 2 elements, first at [1]: got 2.0, expected 3.0"),
        (1, 2, ""),
    ],
)
def test_the_first_difference(got: object, wanted: object, text: str) -> None:
    assert asserted.first_difference(got, wanted) == text


CALLS = """
import numpy as np


def test_close(impl):
    a, w = np.arange(3.0), 7
    assert np.allclose(a, a) and impl.double(1) == 2
    assert np.allclose(impl.double(a) + 1, [1.0, 3.0, w])


def test_bound(impl):
    a, w = np.arange(3.0), 7
    assert (np.abs(impl.double(a)) <= w / 2).all()


def test_equal(impl):
    a = np.arange(3.0)
    assert np.array_equal(impl.double(a), a[:2]), "both"
"""


def test_sides_of_an_assert_that_is_a_call(run: Run, starter: Path) -> None:
    starter.write_text(SOLUTION)
    starter.with_name("test_lab.py").write_text(CALLS)
    text = rows(run("-q", FIRST, LAB_IMPL="starter").stdout)
    assert "got       array([1., 3., 5.])\nexpected  [1.0, 3.0, 7]\ndiffer    1 of 3 elements, first at [2]" in text
    assert "got       array([0., 2., 4.])\nexpected  <= 3.5\ndiffer    1 of 3 elements, first at [2]: got 4.0" in text
    assert "both\nchecked   np.array_equal(impl.double(a), a[:2])\ngot       array([0., 2., 4.])" in text
    assert "differ    shape (3,), expected (2,)" in text


def test_a_call_whose_values_are_not_to_be_had_is_left_alone() -> None:
    statement = ast.parse("assert np.allclose(f(x), g(x))").body[0]
    assert isinstance(statement, ast.Assert)
    assert asserted.call_rows(statement, {"x": 1}) == []


@pytest.mark.parametrize(("gives", "asked"), [("int | None", False), ("int", True)])
def test_a_none_that_the_signature_allows_is_no_missing_return(
    run: Run, starter: Path, gives: str, asked: bool
) -> None:
    starter.write_text(f"{SOLUTION}\n\ndef half(x: int) -> {gives}:\n    return None\n")
    starter.with_name("test_lab.py").write_text(
        "def test_got(impl):\n    assert impl.half(4) == 2\n\ndef test_used(impl):\n    assert impl.half(4) + 1 == 3\n"
    )
    text = rows(run("-q", FIRST, LAB_IMPL="starter").stdout)
    assert "2 failed" in text and text.count("missing?") == 2 * asked


@pytest.mark.parametrize("method", ["thread", "signal"])
def test_failures_teach(run: Run, starter: Path, method: str) -> None:
    if method == "signal" and not hasattr(signal, "SIGALRM"):
        pytest.skip("no alarm signal here")
    second = starter.parents[1] / Path(SECOND).name
    wrong = SOLUTION.replace("self.n += by", "self.n += by + 1").replace("def double(x: int)", "def double(x, y)")
    starter.write_text(wrong)
    (second / "starter.py").write_text(SOLUTION.replace("self.n += by", "while by >= 0:\n            self.n += by"))
    for seconds in LIMITS_S:
        (second / "test_lab.py").write_text(limited(seconds))
        text = rows(run("-q", f"--timeout-method={method}", "phase-00-foundations/labs", LAB_IMPL="starter").stdout)
        if "never ends: the loop" in text:
            break
    assert "5 failed, 3 passed" in text
    assert "this does not hold: counter.add(2) == 2 and counter.add(3) == 5\ngot       3\nexpected  2\n" in text
    assert (
        f"README    steps add up | and are refused below zero\n{FIRST}/README.md:7\ntest      {FIRST}/test_lab.py:"
        in text
    )
    assert "the signature of double was changed: (x, y) in starter.py, the lab calls (x)" in text
    line = SOLUTION[: SOLUTION.index("self.n += by")].count("\n") + 1
    assert f"never ends: the loop `while by >= 0:` in add, {SECOND}/starter.py:{line}" in text
    assert text.count("not run, since test_add never ends") == 1 and "(2 tests were not run" in text


def test_a_chosen_traceback_keeps_the_story(run: Run, starter: Path) -> None:
    starter.write_text(SOLUTION.replace("self.n += by", "self.n += by + 1"))
    text = run("-q", "--tb=short", FIRST, LAB_IMPL="starter").stdout
    assert "E   assert" in text and teach.TITLE in text and "expected  2" in text


def test_an_unwritten_function_is_told_once(run: Run, starter: Path) -> None:
    text = run("-q", FIRST, LAB_IMPL="starter").stdout
    assert text.count("not written yet: Counter.add") + text.count("not written yet: add") == 1
    assert "(2 tests wait for it)" in text and "3 failed, 1 passed" in text


TWICE = "    return 2 * x"
REFUSED = 'raise ValueError("by must not be negative")'


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (
            TWICE,
            "    return [][x]",
            (
                "IndexError: list index out of range\nraised in double,",
                "line      return [][x]\nwith      x = 2\n",
            ),
        ),
        (TWICE, "    raise SystemExit(x)", ("SystemExit: 2", "your code ended the program")),
        ("        return self.n\n", "", ("got       None", "is a `return` missing?")),
        (
            REFUSED,
            "pass",
            (
                "nothing was raised\ngot       no exception\nexpected  ValueError, whose text matches 'negative'",
                "called as impl.Counter().add(-1)",
            ),
        ),
        ('"by must not be negative"', '"no"', ("the wrong text\ngot       a text that does not match: 'no'",)),
        (
            "def double(",
            "def doubled(",
            (
                "starter.py has no double(x), which the lab calls",
                "got       AttributeError: starter.py has no attribute",
            ),
        ),
        (
            "class Counter",
            "class Count",
            (
                "starter.py has no Counter, which the lab calls",
                "(2 more like it: test_negative, test_shout)",
            ),
        ),
        ("        self.n += by", "        print('a' * 9)\n        self.n += by + 1", ("printed:\naaaaaaaaa",)),
    ],
)
def test_stories(old: str, new: str, wanted: tuple[str, ...], run: Run, starter: Path) -> None:
    assert old in SOLUTION
    starter.write_text(SOLUTION.replace(old, new))
    text = rows(run("-q", FIRST, LAB_IMPL="starter").stdout)
    assert "Traceback" not in text and ">   " not in text
    assert [part for part in wanted if part not in text] == [], text


def test_numpys_own_asserts_are_told(run: Run, starter: Path) -> None:
    call = "np.testing.assert_allclose(impl.double(np.ones(2)), [2, 3], err_msg='twice')"
    starter.with_name("test_lab.py").write_text(f"import numpy as np\n\n\ndef test_rows(impl):\n    {call}\n")
    starter.write_text(SOLUTION)
    text = rows(run("-q", FIRST, LAB_IMPL="starter").stdout)
    assert "\ntwice\n" in text and "got       array([2., 2.])\nexpected  array([2, 3])" in text


def test_a_file_that_does_not_load_is_told_once(run: Run, starter: Path) -> None:
    starter.write_text("def f(:\n")
    text = run("-q", FIRST, LAB_IMPL="starter").stdout
    assert text.count("starter.py:1 does not parse") == 1 and "(4 tests need the file)" in text
    starter.write_text("while 1:\n    pass\n")
    for seconds in LIMITS_S:
        starter.with_name("test_lab.py").write_text(limited(seconds))
        text = run("-q", FIRST, LAB_IMPL="starter").stdout
        if "never ends: the loop" in text:
            break
    assert "did not finish loading; never ends: the loop `while 1:` in <module>" in text


def test_a_flood_of_prints_and_of_failures_is_cut(run: Run, starter: Path) -> None:
    starter.write_text(SOLUTION.replace("        self.n += by", "        print('x\\n' * 5000)"))
    many = "".join(
        f"\n\ndef test_{c}(impl):\n    assert impl.Counter().add({i}) == {i}\n" for i, c in enumerate("abcd", 1)
    )
    starter.with_name("test_lab.py").write_text(TESTS + many)
    text = run("-q", FIRST, LAB_IMPL="starter").stdout
    assert len(text.splitlines()) < 80 and "the last 8 of 5,00" in text
    assert (
        text.count("expected  ") == shown.SHOWN
        and "2 more red tests: test_c, test_d (course test 00-01 --full)" in text
    )


def test_warnings_of_the_learners_code_stand_in_the_story(run: Run, starter: Path) -> None:
    starter.write_text(SOLUTION.replace("self.n += by", "__import__('warnings').warn('odd')"))
    text = rows(run("-q", FIRST, LAB_IMPL="starter").stdout)
    assert "warned    UserWarning: odd" in text and "warnings summary" not in text


@pytest.mark.parametrize("coding", ["", "# -*- coding: latin-1 -*-\n"])
def test_a_file_that_is_not_utf_8(coding: str, tmp_path: Path) -> None:
    path = tmp_path / "starter.py"
    path.write_bytes(coding.encode() + b"x = 1\n# caf\xe9\n")
    if coding:
        assert load(path).x == 1
        return
    with pytest.raises(LabError, match=r"starter\.py:2 is not UTF-8 text \(byte 0xe9\); save it as UTF-8"):
        load(path)


def test_a_failure_that_does_not_teach_is_found(small_course: Path, tmp_path: Path) -> None:
    folder = small_course / FIRST
    bad = SOLUTION.replace("self.n += by", "self.n += by + 1")
    (verdict,) = warm.run_variants(folder, [warm.Variant("bad", bad, stop_early=False)])
    assert verdict.failed == ("test_add",) and verdict.lacks == (
        'test_add: no row of the README\'s table "What the tests prove" names it',
    )
    (folder / "README.md").write_text(README + "\n## Common mistakes\n\n- One too many.\n", encoding="utf-8")
    (verdict,) = warm.run_variants(folder, [warm.Variant("bad", bad, stop_early=False)])
    assert verdict.lacks == ()
    (folder / "README.md").write_text("# Lab\n\n## Common mistakes\n\n- One too many.\n", encoding="utf-8")
    patch = tmp_path / "phase-00" / "lab-01" / "01-more.patch"
    patch.parent.mkdir(parents=True)
    patch.write_text(
        "Test: test_add\nMistake: One too many.\n--- a/solution.py\n+++ b/solution.py\n@@ -18,1 +18,1 @@\n"
        "-        self.n += by\n+        self.n += by + 1\n"
    )
    (problem,) = mistakes.check_mistakes(folder, tmp_path)
    assert "test_add: no row" in problem.text and "(seen with 01-more.patch)" in problem.text


def test_lines_fold_and_paths_stay_whole() -> None:
    path = "phase-00-foundations/labs/lab-01-kv-cache-speedup/README.md:7"
    told = {"headline": "a " * 60, "rows": [["README", f"{'word ' * 20}\n{path}"]], "group": ""}
    lines = story.render(told, 60)
    assert all(len(line) <= 60 or path in line for line in lines) and any(line.endswith(path) for line in lines)


def test_an_error_in_a_ring_of_causes_ends() -> None:
    """An error that is the cause of its own context: looking for an unwritten function comes to an end."""
    from course.pytest_plugin import unwritten

    inner, outer = IndexError("inner"), RuntimeError("outer")
    outer.__cause__, inner.__context__ = inner, outer
    assert unwritten(inner, Path(__file__).with_name("starter.py")) is None


def test_a_literal_text_that_differs(run: Run, starter: Path) -> None:
    """Of a pattern that is a literal text between ^ and $, pytest shows a diff; the story still says what was got."""
    tests = starter.with_name("test_lab.py")
    literal = tests.read_text(encoding="utf-8").replace('match="negative"', 'match="^by must not be negative$"')
    assert literal != tests.read_text(encoding="utf-8")
    tests.write_text(literal, encoding="utf-8")
    starter.write_text(SOLUTION.replace('"by must not be negative"', '"no"'))
    assert "got       a text that does not match: no" in rows(run("-q", FIRST, LAB_IMPL="starter").stdout)
