"""Grading: intake of anything, the screen, the sandbox against each attack, marks, reports, look-alikes."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course.grade.grading import Grades, grade
from course.grade.intake import Submission, lab_of_entry, mark, take_in
from course.grade.report import FORMATS, render
from course.grade.settings import Limits, Settings
from course.grade.similarity import REFERENCE, similar
from course.labs import Lab, LabError, find_labs, lab_folders, lab_of
from course.tests import submissions as made
from course.tests.conftest import FIRST, SECOND, SOLUTION, STARTER

pytestmark = pytest.mark.maintainer

LAB, OTHER = (lab for folder in (FIRST, SECOND) if (lab := lab_of(folder)) is not None)
linux = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
FAST = Settings(limits=Limits(test_seconds=0.5, lab_seconds=4, memory_mb=256, stops=1))


def attack(name: str, root: Path) -> bytes:
    body = made.BODIES[name].replace("SOLUTION", repr(str(root / FIRST / "solution.py")))
    return SOLUTION.replace(made.TOP, made.TOP + body, 1).encode()


def run(root: Path, files: dict[str, bytes], settings: Settings = FAST) -> Grades:
    learners = [Submission(name, {LAB.key: text}) for name, text in files.items()]
    return grade(learners, [LAB], settings, 2, [root], root)


@linux
def test_every_attack_is_reported_and_harms_nobody(small_course: Path) -> None:
    files = {name: attack(name, small_course) for name in made.BODIES}
    files |= {"junk": random.Random(1).randbytes(999), "good": SOLUTION.encode(), "untouched": STARTER.encode()}
    grades = run(small_course, files)
    rows = {row.submission: row for row in grades.rows}
    assert rows["good"].status == "graded" and rows["good"].share == 1.0
    assert rows["untouched"].status == "graded" and rows["untouched"].share == 0.0
    for name in [*made.BODIES, "junk"]:
        assert rows[name].share == 0.0, name
        assert rows[name].status != "graded" or rows[name].findings or rows[name].passed == 0, name
    assert {rows[n].status for n in ("exits", "imports-pytest", "imports-engine", "asks-for-solution")} == {"held"}
    assert rows["junk"].status == "broken"
    text = render(grades, "table")
    assert "endless-loop" in text and "more than 0.5 s" in text


@linux
def test_what_a_human_lets_run_the_sandbox_stops(small_course: Path) -> None:
    names = ("exits-quietly", "fork-bomb", "patches-pytest", "reads-solution", "forges-results", "kills-parent")
    files = {name: attack(name, small_course) for name in names}
    settings = Settings(limits=FAST.limits, accepted=tuple(map(mark, files.values())))
    rows = {r.submission: r for r in run(small_course, files, settings).rows}
    assert all(row.share == 0 for row in rows.values()), {n: (r.status, r.passed) for n, r in rows.items()}
    assert rows["patches-pytest"].status == "tampered"
    assert rows["forges-results"].status == "tampered"
    assert rows["reads-solution"].status == "tampered"


@linux
@pytest.mark.slow
def test_partial_credit_and_the_same_bytes_twice(small_course: Path) -> None:
    half = STARTER.replace('raise NotImplementedError("Return twice x.")', "return 2 * x").encode()
    late = SOLUTION.replace("return 2 * x", "while True:\n        pass").encode()
    first = run(small_course, {"half": half, "late": late})
    row, slow = first.rows
    assert {test: outcome for test, (outcome, _) in row.tests.items()} == {
        "test_add": "unwritten",
        "test_negative": "unwritten",
        "test_runtime_error_does_not_hide_a_stub": "passed",
    }
    assert slow.passed == 2  # the endless function costs its own test alone
    again = run(small_course, {"half": half, "late": late})
    for form in FORMATS:
        assert render(first, form) == render(again, form)
    assert json.loads(render(first, "json"))["submissions"][0]["points"] == 33.33
    assert next(csv.DictReader(io.StringIO(render(first, "csv"))))["points"] == "33.33"
    assert len(ElementTree.fromstring(render(first, "junit")).findall(".//failure")) == 3


def test_intake(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    names = set(made.odd(tmp_path / "class", [LAB, OTHER]))
    made.write_bundle(tmp_path / "class" / "bundled.bundle", tmp_path / "repo", made.solutions([LAB, OTHER]))
    made.write_folder(tmp_path / "class" / "bare", {f"labs/{LAB.slug}/starter.py": b"x = 1\n"})
    found = {s.name: s for s in take_in(tmp_path / "class", [LAB, OTHER], 1 << 18)}
    assert set(found) == names | {"bundled", "bare"}
    assert set(found["bundled"].files) == {LAB.key, OTHER.key} and found["bundled"].when is not None
    assert found["bare"].files == {LAB.key: b"x = 1\n"}
    assert set(found["edited-tests"].files) == {LAB.key, OTHER.key}
    for name, words in {
        "link-out": "not a regular file",
        "zip-bomb": "allowed are 262144",
        "broken-zip": "cannot be read",
        "broken-bundle": "cannot be read",
        "climbs-out": "holds no labs",
        "empty": "holds no labs",
    }.items():
        assert not found[name].files and words in found[name].problems[0], name
    with pytest.raises(LabError, match="does not exist"):
        take_in(tmp_path / "nobody", [LAB], 1)
    assert lab_of_entry("phase-09-x/labs/" + LAB.slug + "/starter.py", [LAB]) is None


def class_of(labs: list[Lab]) -> list[Submission]:
    """Twelve who wrote alone, and two who copied from the first two."""

    def one(name: str, change: Callable[[str], str]) -> Submission:
        files = made.solutions(labs, lambda lab, text: change(text))
        return Submission(name, {lab.key: text for lab, text in zip(labs, files.values(), strict=True)})

    alone = [one(f"alone-{n:02d}", lambda text, n=n: made.restyled(text, n)) for n in range(12)]
    copies = [one(f"copy-{n:02d}", lambda text, n=n: made.copied(made.restyled(text, n))) for n in range(2)]
    return [*alone, *copies]


def test_copies_are_listed_under_other_names_and_in_another_order_and_independent_work_is_not() -> None:
    labs = [lab for lab in find_labs("02") if not lab.missing_modules]
    texts = {b: ((b.folder / "starter.py").read_bytes(), (b.folder / "solution.py").read_bytes()) for b in labs}
    untouched = Submission("untouched", {lab.key: texts[lab][0] for lab in labs})
    found = similar([*class_of(labs), untouched], texts)
    found = [p for p in found if p.second != REFERENCE]  # these are all made from it
    assert {(p.first, p.second) for p in found} == {("alone-00", "copy-00"), ("alone-01", "copy-01")}
    assert all(p.share > 0.95 and len(p.labs) >= 3 for p in found)


def test_who_hands_in_the_courses_solution_is_listed() -> None:
    labs = find_labs("02-01")
    texts = {b: ((b.folder / "starter.py").read_bytes(), (b.folder / "solution.py").read_bytes()) for b in labs}
    text = made.copied((labs[0].folder / "solution.py").read_text(encoding="utf-8"))
    (pair,) = similar([Submission("a", {labs[0].key: text.encode()})], texts)
    assert (pair.first, pair.second) == ("a", REFERENCE) and pair.share > 0.95


BESIDE: list[tuple[str, str]] = [
    ("", "_ = 0x" + "f" * 5000 + "\n"),
    ("# coding: no-such-codec\n", ""),
    ("\ufeff# -*- coding: rot13 -*-\n", ""),
    ("", "_ = " + "1 + " * 3000 + "1\n"),
    ("", "_ = '" + "x" * 90_000 + "'\n"),
    ("", "def broken(:\n"),
]


@pytest.mark.parametrize(("before", "behind"), BESIDE)
def test_an_unchanged_copy_of_the_solution_is_listed_whatever_stands_beside_it(before: str, behind: str) -> None:
    lab = find_labs("02-01")[0]
    texts = {lab: ((lab.folder / "starter.py").read_bytes(), (lab.folder / "solution.py").read_bytes())}
    mine = (before + (lab.folder / "solution.py").read_text(encoding="utf-8") + behind).encode()
    shares = [
        (pair.first, pair.second, pair.share >= 0.9) for pair in similar([Submission("a", {lab.key: mine})], texts, 0.5)
    ]
    assert shares == [("a", REFERENCE, True)]


@linux
def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "eve.zip")
    os.mkfifo(tmp_path / "eve.bundle")
    (tmp_path / "adam" / "labs" / LAB.slug).mkdir(parents=True)
    os.mkfifo(tmp_path / "adam" / "labs" / LAB.slug / "starter.py")
    found = take_in(tmp_path, [LAB], 1000)
    assert [s.problems[0].partition(": ")[2] or s.problems[0] for s in found] == [
        "not a regular file (a symbolic link?), left out", "not opened", "not opened"
    ]  # fmt: skip
    with pytest.raises(LabError, match="does not exist"):
        take_in(tmp_path / "eve.zip", [LAB], 1000)


@pytest.mark.parametrize("lines", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_look_alikes_of_a_hostile_file_take_no_time(lines: int) -> None:
    lab = find_labs("02-01")[0]
    texts = {lab: ((lab.folder / "starter.py").read_bytes(), (lab.folder / "solution.py").read_bytes())}
    long = b"x = 1 + 1\n" * lines
    assert similar([Submission(n, {lab.key: long}) for n in "abc"], texts) == []
    assert similar([Submission(n, {lab.key: b"\xff\x00("}) for n in "abc"], texts) == []


def every_point(chosen: list[Lab]) -> None:
    """Asserts that the references of labs have every point of the grader."""
    files = {lab.key: (lab.folder / "solution.py").read_bytes() for lab in chosen}
    grades = grade([Submission("reference", files)], chosen, Settings())
    assert [(r.lab.name, r.findings) for r in grades.rows if r.share < 1] == [] and not grades.skipped


@linux
def test_the_reference_has_every_point() -> None:
    """Of a lab with arrays; one whose code drives the engine is graded in ``test_grade_twins``."""
    every_point(find_labs("00-03"))


@linux
@pytest.mark.slow
def test_references_of_several_labs_in_one_submission_have_every_point() -> None:
    """Each lab by itself, its reference in other words: ``test_grade_honest``."""
    labs = [lab for lab in map(lab_of, lab_folders()) if lab is not None and not lab.missing_modules]
    last = {lab.phase[6:8]: lab for lab in labs if lab.number != "05-06"}  # no wall lets its C++ compiler through
    every_point([*(last[phase] for phase in ("02", "09", "12")), *find_labs("00-03")])


def test_a_hostile_container_harms_no_other(tmp_path: Path) -> None:
    made.write_zip(tmp_path / "many.zip", {f"{n}/labs/{LAB.slug}/starter.py": bytes(3000) for n in range(400)})
    made.write_zip(tmp_path / "good.zip", {f"labs/{LAB.slug}/starter.py": b"x = 1\n"})
    whole = (tmp_path / "good.zip").read_bytes()
    rng = random.Random(0)
    for n in range(60):
        broken = bytearray(whole)
        for _ in range(4):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        (tmp_path / f"broken-{n}.zip").write_bytes(broken)
    (tmp_path / "a\x1b[2Jb").mkdir()
    found = {s.name: s for s in take_in(tmp_path, [LAB, OTHER], 2000)}
    assert found["good"].files == {LAB.key: b"x = 1\n"}
    assert len(found["many"].problems) == 11 and found["many"].problems[-1].startswith("and more")
    assert "a?[2Jb" in found


def test_a_bundle_with_endless_folders_ends(tmp_path: Path) -> None:
    def git(*args: str, text: str = "") -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", *who, "-C", str(tmp_path / "repo"), *args]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "repo").mkdir()
    (tmp_path / "class").mkdir()
    git("init", "-q")
    sha, kind = git("hash-object", "-w", "--stdin", text="x"), "100644 blob"
    for _ in range(8):  # ten to the eighth files in a few hundred bytes
        sha, kind = git("mktree", text="".join(f"{kind} {sha}\tpart-{n}\n" for n in range(10))), "040000 tree"
    git("update-ref", "refs/heads/main", git("commit-tree", sha, "-m", "x"))
    git("bundle", "create", str(tmp_path / "class" / "bomb.bundle"), "main")
    (bomb,) = take_in(tmp_path / "class", [LAB], 1000)
    assert bomb.problems == ["cannot be read: git ls-tree: more than 16 MiB of output: too many files"]
