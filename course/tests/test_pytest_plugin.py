"""What a learner sees when she runs pytest on labs."""

from __future__ import annotations

import json
from pathlib import Path, PureWindowsPath

import pytest

from course import labs
from course.labs import Lab, LabError
from course.tests.conftest import FIRST, SECOND, STARTER, Run

pytestmark = pytest.mark.maintainer

LABS = "phase-00-foundations/labs"


def test_solutions_are_green(run: Run) -> None:
    done = run("-q", LABS)
    assert done.returncode == 0, done.stdout
    assert "labs (solution.py)" in done.stdout
    assert "00-01 kv-cache-speedup             done (4 tests)" in done.stdout
    assert "00-02 kv-memory-calculator         done (4 tests)" in done.stdout


def test_starters_are_red_in_words(run: Run, small_course: Path) -> None:
    half = STARTER.replace('raise NotImplementedError("Return twice x.")', "return x + x")
    (small_course / SECOND / "starter.py").write_text(half)
    report = small_course / "report.json"
    done = run("-q", LABS, LAB_IMPL="starter", COURSE_REPORT=str(report))
    assert done.returncode == 1
    line = STARTER[: STARTER.index("Return twice x.")].count("\n") + 1
    assert f"not written yet: double, {FIRST}/starter.py:{line}\n    Return twice x." in done.stdout
    assert "Traceback" not in done.stdout and ">       " not in done.stdout
    assert "00-01 kv-cache-speedup             not started" in done.stdout
    assert "00-02 kv-memory-calculator         2 of 4" in done.stdout
    tests = {t["nodeid"].split("::")[1]: t for t in json.loads(report.read_text())[labs.lab_of(Path(FIRST)).key]}  # type: ignore[union-attr]
    assert tests["test_runtime_error_does_not_hide_a_stub"]["stub"] == "Return twice x."
    assert tests["test_shout"]["outcome"] == "passed" and not tests["test_shout"]["learner"]
    record = json.loads((small_course / ".course" / "progress.json").read_text())
    assert record["phase-00-foundations/lab-02-kv-memory-calculator"]["passed"] == 2


def test_a_chosen_tb_style_brings_the_traceback_back(run: Run) -> None:
    done = run("-q", "--tb=short", FIRST, LAB_IMPL="starter")
    assert "E   NotImplementedError: Refuse a negative step" in done.stdout


def test_under_xdist(run: Run) -> None:
    pytest.importorskip("xdist")
    done = run("-q", "-p", "xdist", "-n", "1", FIRST, LAB_IMPL="starter")
    assert done.returncode == 1
    assert "not written yet: double" in done.stdout
    assert "00-01 kv-cache-speedup             not started" in done.stdout


def test_another_value_of_lab_impl_is_an_error(run: Run) -> None:
    done = run("-q", LABS, LAB_IMPL="mine")
    assert done.returncode == 4
    assert "LAB_IMPL='mine'" in done.stderr and "LAB_IMPL=starter" in done.stderr and "LAB_IMPL=solution" in done.stderr


def test_an_interpreter_that_is_not_there_is_an_error(run: Run) -> None:
    done = run("-q", LABS, COURSE_VLLM_PYTHON="/nowhere/python")
    assert done.returncode == 4 and "/nowhere/python" in done.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "starter.py:1 does not parse (SyntaxError"),
        ("import os\nimport no_such_thing\n", "starter.py:2 cannot import: No module named 'no_such_thing'"),
        ("x = 1\ny = x / 0\n", "starter.py:2 stopped while it was imported (ZeroDivisionError"),
        ("raise SystemExit\n", "starter.py:1 stopped while it was imported (SystemExit"),
        ("x = '\0'\n", "starter.py"),
    ],
)
def test_a_file_that_does_not_load_is_told_plainly(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text(source)
    with pytest.raises(LabError, match="starter") as caught:
        labs.load(tmp_path / "starter.py")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_broken_and_hanging_starters(run: Run, small_course: Path) -> None:
    (small_course / FIRST / "starter.py").write_text("import nothing_of_that_name\n")
    (small_course / SECOND / "starter.py").write_text("while True:\n    pass\n")
    path = small_course / SECOND / "test_lab.py"
    path.write_text("import pytest\npytestmark = pytest.mark.timeout(1)\n" + path.read_text())
    done = run("-q", LABS, LAB_IMPL="starter")
    assert done.returncode == 1
    assert "starter.py:1 cannot import: No module named 'nothing_of_that_name'" in done.stdout
    assert "did not finish loading" in done.stdout
    assert done.stdout.count("does not load") == 2


def test_gpu_and_real_vllm_are_skipped_with_a_reason(run: Run, small_course: Path) -> None:
    (small_course / FIRST / "test_lab.py").write_text(
        "import pytest\n\n@pytest.mark.gpu\ndef test_gpu(impl): pass\n\n"
        "@pytest.mark.real_vllm\ndef test_real(impl, real_vllm_python): pass\n"
    )
    done = run("-q", FIRST)
    assert "run `course vllm`" in done.stdout or labs.vllm_python() is not None
    assert "00-01 kv-cache-speedup" in done.stdout


def test_labs_are_found_by_many_names() -> None:
    if not labs.lab_folders():
        pytest.skip("no labs here")
    assert len(labs.find_labs("00")) == len(labs.find_labs("phase-00-foundations")) == len(labs.find_labs("0"))
    (one,) = labs.find_labs("00-03")
    for name in (
        "lab-03-sampling-basics",
        "sampling-basics",
        f"{one.phase}/labs/{one.slug}/",
        "./" + one.key.replace("/", "/labs/"),
        f".\\{one.phase}\\labs\\{one.slug}\\",
        str(PureWindowsPath("C:/Kurs mit Spaß", one.phase, "labs", one.slug)),
    ):
        assert labs.find_labs(name) == [one]
    with pytest.raises(LabError, match="no lab or phase is called 'lab-99'"):
        labs.find_labs("lab-99")


def test_a_malformed_row_is_named(tmp_path: Path) -> None:
    table = tmp_path / "labs.toml"
    table.write_text('[phase-00-x.lab-01-y]\ntag = "CPU"\nminutes = 3\n')
    with pytest.raises(LabError, match=r"\[phase-00-x.lab-01-y\]: tag is 'CPU'; allowed are CPU-OK"):
        labs.all_labs(table)
    table.write_text('[phase-00-x.lab-01-y]\ntag = "CPU-OK"\nminutes = 3\nplugs = ""\n')
    with pytest.raises(LabError, match="unknown key 'plugs'"):
        labs.all_labs.__wrapped__(table)


def test_a_lab_knows_its_names() -> None:
    lab = Lab("phase-00-foundations", "lab-03-sampling-basics", "CPU-OK", 30)
    assert (lab.name, lab.phase_number, lab.key) == (
        "00-03 sampling-basics",
        0,
        "phase-00-foundations/lab-03-sampling-basics",
    )
