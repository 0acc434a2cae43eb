"""On a fresh clone the workers of `-n` rewrite each test file once, together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.assertion import rewrite

from course import compiled
from course.tests.conftest import FIRST, SECOND, TESTS, Run

pytestmark = pytest.mark.maintainer


STOPS = """import pytest


def pytest_collection(session):
    if hasattr(session.config, "workerinput"):
        pytest.exit("that is enough")
"""


def kept(path: Path) -> Path:
    return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"


def test_what_has_no_result_yet_is_found_the_largest_first(small_course: Path) -> None:
    first, second = (small_course / name / "test_lab.py" for name in (FIRST, SECOND))
    second.write_text(TESTS + "\n# more\n")
    found = compiled.unwritten([".", FIRST, f"{SECOND}/test_lab.py::test_add"], small_course, lambda path: False)
    assert found == [second, first]
    assert compiled.unwritten(["."], small_course, lambda path: path == second) == [first]
    kept(first).parent.mkdir()
    kept(first).write_bytes(b"")
    assert compiled.unwritten(["."], small_course, lambda path: False) == [second]


def test_pytest_reads_what_was_written(small_course: Path, pytestconfig: pytest.Config) -> None:
    broken, first = small_course / "test_broken.py", small_course / FIRST / "test_lab.py"
    broken.write_text("def broken(:\n")
    compiled.write([broken, first], pytestconfig)
    code = rewrite._read_pyc(first, kept(first))
    assert code is not None and code == rewrite._rewrite_test(first, pytestconfig)[1]
    assert "@pytest_ar" in code.co_names and not kept(broken).exists()


def test_each_worker_writes_its_share(small_course: Path, pytestconfig: pytest.Config) -> None:
    for number in range(5):
        (small_course / FIRST / f"test_{number}.py").write_text("def test_a():\n    assert 1\n" + "#\n" * number)
    files = sorted((small_course / FIRST).glob("test_*.py"))
    same: dict[str, Any] = {
        "args": [FIRST],
        "invocation_params": SimpleNamespace(dir=small_course),
        "stash": pytestconfig.stash,
    }
    same["getini"] = pytestconfig.getini
    shares = []
    for worker in ("gw0", "gw3"):
        said: Any = SimpleNamespace(**same, workerinput={"workerid": worker, "workercount": 2})
        compiled.write_share(said, lambda path: False)
        shares.append({path for path in files if kept(path).is_file()})
        for path in shares[-1]:
            kept(path).unlink()
    assert shares[0] | shares[1] == set(files) and [len(share) for share in shares] == [3, 3]
    alone: Any = SimpleNamespace(**same)
    compiled.write_share(alone, lambda path: False)
    assert not any(kept(path).is_file() for path in files), "who is alone collects"


def test_a_worker_writes_before_it_collects(run: Run, small_course: Path) -> None:
    (small_course / "stops.py").write_text(STOPS)
    options = ("-p", "xdist", "-n", "1", "--max-worker-restart", "0", "-p", "stops")
    run("-q", *options, "-m", "not slow", FIRST)
    assert kept(small_course / FIRST / "test_lab.py").is_file()
