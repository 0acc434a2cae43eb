"""Which file a learner means, and how its bytes are read: as her own pytest does, or a human is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course.grade.fork import as_python
from course.grade.intake import Submission, take_in
from course.grade.settings import Settings
from course.labs import find_labs
from course.tests.conftest import SOLUTION
from course.tests.submissions import write_folder, write_zip
from course.tests.test_grade import FAST, linux, run

pytestmark = pytest.mark.maintainer

(LAB,) = find_labs("02-01")
START = (LAB.folder / "starter.py").read_bytes()
HERE = f"{LAB.phase}/labs/{LAB.slug}"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("# -*- coding: gbk -*-", "gbk"),
        ("# vim: set fileencoding=euc-jp :", "euc-jp"),
        ("#!/usr/bin/python\n# coding=latin-1", "latin-1"),
        ("# coding: utf8", "utf-8"),
        ("# nothing", "utf-8"),
        ("", "utf-8-sig"),
    ],
)
def test_a_declared_encoding_is_read_as_python_does(line: str, name: str) -> None:
    text = f"{line}\n# {'漢字' if name != 'latin-1' else 'é'}\r\nx = 1\r\n"
    assert as_python(text.encode(name)) == (text, "")
    compile(text.encode(name), "starter.py", "exec")


@pytest.mark.parametrize("name", ["rot13", "utf-7", "unicode_escape", "punycode", "utf-16"])
def test_an_encoding_that_hides_code_is_held(name: str) -> None:
    for head in (f"# coding: {name}\n", f"\n# -*- coding={name} -*-\n"):
        source, why = as_python(head.encode() + b"x = 1\n")
        assert source == "" and why.endswith(f"declares the encoding {name}")


def test_what_python_does_not_read_is_no_text() -> None:
    assert as_python("x = 1\n".encode("utf-16"))[1].startswith("1: is UTF-16 text")
    for data in (
        b"# coding: nobodys\n",
        b"\xff = 1\n",
        b"x\n\n\n\xff\n",
        b"x = 1\0\n",
        b"\xef\xbb\xbf# coding: latin-1\n",
    ):
        with pytest.raises((SyntaxError, ValueError)):
            as_python(data)


def taken(folder: Path, files: dict[str, bytes], packed: bool = False) -> Submission:
    (folder / "class").mkdir()
    (write_zip if packed else write_folder)(folder / "class" / f"ann{'.zip' if packed else ''}", files)
    (one,) = take_in(folder / "class", [LAB], 1 << 18)
    return one


@pytest.mark.parametrize("packed", [True, False])
def test_of_two_files_that_differ_a_human_takes_one(tmp_path: Path, packed: bool) -> None:
    one = taken(tmp_path, {f"a/{HERE}/starter.py": b"x = 1\n", f"b/{HERE}/starter.py": b"x = 2\n"}, packed)
    data, why = one.take(LAB.key, ())
    assert data is None and "2 files for this lab differ" in why[0]
    assert [line.partition(": to take this one")[0] for line in why[1:]] == [f"{at}/{HERE}/starter.py" for at in "ab"]
    (given,) = re.findall(r"'(\w+)'", why[2])
    assert one.take(LAB.key, (given,)) == (b"x = 2\n", [])


@pytest.mark.parametrize("at", ["a", "z"])
def test_an_untouched_starter_beside_another_file_does_not_count(tmp_path: Path, at: str) -> None:
    one = taken(
        tmp_path, {f"{at}/{HERE}/starter.py": START.replace(b"\n", b"\r\n"), f"m/{HERE}/starter.py": b"x = 1\n"}
    )
    assert one.take(LAB.key, ()) == (b"x = 1\n", []) and one.problems == []


def test_the_same_file_twice_is_one(tmp_path: Path) -> None:
    one = taken(tmp_path, {f"{at}/{HERE}/starter.py": b"x = 1\n" for at in "ab"})
    assert one.take(LAB.key, ()) == (b"x = 1\n", [])


@pytest.mark.parametrize(
    "name",
    [
        "Starter.py",
        "starter (1).py",
        "starter.py.txt",
        "starter_final.py",
        "my_starter.py",
        "starter - Copy.py",
        "../lab-01-block-allocator (2)/starter.py",
        "../Lab-01-Block-Allocator/STARTER.PY",
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_a_file_that_is_nearly_called_so_is_named(tmp_path: Path, name: str, beside: bool) -> None:
    path = f"{LAB.phase}/labs/{name[3:]}" if name.startswith("../") else f"{HERE}/{name}"
    one = taken(tmp_path, {path: b"x = 1\n"} | ({f"{HERE}/starter.py": START} if beside else {}))
    data, why = one.take(LAB.key, ())
    if name.startswith("my_"):
        assert (data == START) == beside and not why
        return
    assert data is None and "nearly called" in why[0] and path in why[1]


def test_a_nearly_called_file_beside_a_right_one_is_a_note(tmp_path: Path) -> None:
    one = taken(tmp_path, {f"{HERE}/starter.py": b"x = 1\n", f"{HERE}/starter (1).py": b"x = 2\n"})
    assert one.take(LAB.key, ()) == (b"x = 1\n", []) and "starter (1).py: not called" in one.problems[0]


@linux
def test_bytes_of_each_kind_have_every_point(small_course: Path) -> None:
    text = SOLUTION.replace("\n", "\r\n")
    files = {
        "gbk": f"# coding: gbk\r\n# 漢字\r\n{text}".encode("gbk"),
        "bom": text.encode("utf-8-sig"),
        "mac": SOLUTION.replace("\n", "\r").encode(),
        "wide": text.encode("utf-16"),
    }
    rows = {row.submission: row for row in run(small_course, files, Settings(limits=FAST.limits)).rows}
    assert {name: (row.status, row.share) for name, row in rows.items()} == {
        **dict.fromkeys(("gbk", "bom", "mac"), ("graded", 1.0)),
        "wide": ("held", 0.0),
    }
