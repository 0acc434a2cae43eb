"""Arguments for surviving mutants: a key means one mutant, the one that somebody has looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.contract import equivalent, mutation
from course.contract.mutants import Mutant, mutants
from course.labs import LabError, lab_of
from course.tests.conftest import FIRST, SECOND

pytestmark = pytest.mark.maintainer

SOURCE = """def ladder(top, x=1):
    a = "ä"; rungs = [1, 2, *range(1, top + 1)]
    if x < 1 or top < 1:
        x = 1 @ top
    return rungs
"""


def made() -> list[Mutant]:
    return list(mutants(SOURCE, {"ladder"}))


def fits(key: str) -> list[tuple[int, int]]:
    return [(m.line, m.column) for m in equivalent.meant(key, made(), SOURCE.splitlines())]


def test_a_key_that_fits_several_means_none_of_them() -> None:
    assert len(fits("ladder: 1 -> 2")) == 7
    assert equivalent.argued(made(), SOURCE, {"ladder: 1 -> 2": "all of them, surely"}) == set()
    assert equivalent.argued(made(), SOURCE, {"ladder: 2 -> 3": "there is one"}) == {
        m for m in made() if m.change == "2 -> 3"
    }


@pytest.mark.parametrize(
    ("piece", "places"),
    [
        ("[1, 2", [(2, 22)]),  # the column counts characters, though a letter before it has two bytes
        ("(1, top", [(2, 35)]),
        ("top + 1", [(2, 44)]),
        ("if x < 1", [(3, 11)]),
        ("or top < 1", [(3, 22)]),
        ("x=1", [(1, 18)]),
        ("< 1", []),  # twice in its line
        (", 2, *range", []),  # in the line, but not around a 1
        ("another line", []),
        ("[1, 2, *range(1", [(2, 22), (2, 35)]),
    ],
)
def test_a_piece_of_the_line_says_which(piece: str, places: list[tuple[int, int]]) -> None:
    assert fits(f"ladder: 1 -> 2 @ {piece}") == places


def test_an_at_sign_of_the_code_is_no_piece() -> None:
    assert fits("ladder: 1 @ top -> 1 + top") == [(4, 12)]
    assert fits("ladder: 1 @ top -> 1 + top @ x = 1 @ top") == [(4, 12)]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "equivalent.toml"
    monkeypatch.setattr(equivalent.arguments, "__defaults__", (path,))
    return path


def problems(table: Path, course: Path, text: str) -> list[tuple[int, str]]:
    table.write_text(text, encoding="utf-8")
    return [(p.line, p.text) for p in equivalent.check([course / FIRST, course / SECOND], table)]


GOOD = """# Arguments.

["phase-00-foundations/lab-01-kv-cache-speedup"]
"Counter.add: by < 0 -> by <= 0" = "adding nothing is refused or does nothing"
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("", "", 0, ""),
        ("<= 0", "< 1", 4, "has no mutant 'Counter.add: by < 0 -> by < 1'"),
        ("by <= 0", "by <= 0 @ another line", 4, "has no mutant"),
        ("by < 0 -> by <= 0", "0 -> 1", 4, ""),
        ("adding nothing is refused or does nothing", " ", 4, "gives no reason"),
        ("lab-01-kv-cache-speedup", "lab-09-gone", 3, "there is no lab phase-00-foundations/lab-09-gone"),
        (
            'does nothing"\n',
            'does nothing"\n"Counter.add: by < 0 -> by <= 0 @ if by < 0" = "again"\n',
            5,
            "means the mutant that 'Counter.add: by < 0 -> by <= 0' means",
        ),
    ],
)
def test_an_argument_that_means_nothing_is_named(
    table: Path, small_course: Path, old: str, new: str, line: int, message: str
) -> None:
    found = problems(table, small_course, GOOD.replace(old, new))
    assert not message or [at for at, text in found if message in text] == [line], found
    assert message or not found


def test_an_argument_that_hides_others_is_named(table: Path, small_course: Path) -> None:
    solution = small_course / FIRST / "solution.py"
    solution.write_text(solution.read_text(encoding="utf-8").replace("2 * x", "2 * x if x < 2 else 2 * x"))
    text = GOOD.replace("Counter.add: by < 0 -> by <= 0", "double: 2 -> 3")
    (found,) = problems(table, small_course, text)
    assert found[0] == 4 and "fits 3 mutants" in found[1] and "solution.py:24:12, 24:25, 24:32" in found[1]
    assert "add ` @ ` and a piece of the line" in found[1]
    lab = lab_of(small_course / FIRST)
    assert lab is not None and equivalent.arguments(lab.key) and mutation.score(small_course / FIRST).argued == 0


def test_an_argued_mutant_does_not_count(table: Path, small_course: Path) -> None:
    table.write_text("", encoding="utf-8")
    without = mutation.score(small_course / FIRST)
    table.write_text(GOOD, encoding="utf-8")
    score = mutation.score(small_course / FIRST)
    assert score.argued == 1 and score.mutants == without.mutants - 1 and score.killed == without.killed
    gone = {m.name for m in without.survivors} - {m.name for m in score.survivors}
    assert gone == {"Counter.add: by < 0 -> by <= 0"}


def test_a_table_that_cannot_be_read_is_an_error(table: Path, small_course: Path) -> None:
    with pytest.raises(LabError, match=r"course/equivalent\.toml: Expected"):
        problems(table, small_course, "[x")
    table.unlink()  # a copy for grading has none
    assert equivalent.arguments("phase-00-foundations/lab-01-kv-cache-speedup") == {}


def test_the_arguments_of_the_course() -> None:
    found = equivalent.check(equivalent.lab_folders())
    assert not found, "\n" + "\n".join(map(str, found))
