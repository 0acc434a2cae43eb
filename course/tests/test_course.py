"""What holds of the course as it stands: its pages, its labs, its citations, its markers. One test a claim, which lists
all that breaks it. The checks themselves are tested beside their modules, under the mark `maintainer`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from course.contract import mistakes, rules
from course.labs import ROOT, all_labs, edited_starters, lab_folders, tomllib
from course.pages import citations, glossary_check, shape, snippets
from course.pages.markdown import Problem, files, read
from course.pytest_plugin import MARKERS
from course.tests.markers import test_files, unmarked

TREE = citations.pinned_tree()
needs_tree = pytest.mark.skipif(TREE is None, reason="upstream/ is absent: run `course upstream`")


def clean(problems: Iterable[Problem]) -> None:
    found = list(map(str, problems))
    assert not found, f"{len(found)} faults\n" + "\n".join(found)


def untouched() -> list[Path]:
    """The labs whose starter is as it came; another one holds a learner's work."""
    return [folder for folder in lab_folders() if folder / "starter.py" not in edited_starters()]


# pages


def test_links_lead_somewhere() -> None:
    clean(problem for path in shape.all_pages() for problem in shape.check_links(read(path)))


@pytest.mark.parametrize("phase", ["00", "01", "02", "03"])
def test_the_code_of_the_first_guides_runs(phase: str) -> None:
    """That of all pages: `test_pages.py::test_python_blocks_run`."""
    (guide,) = ROOT.glob(f"phase-{phase}-*/00-guide.md")
    assert snippets.steps(read(guide))
    clean(snippets.run_page(read(guide)))


def test_every_exception_has_its_reason() -> None:
    clean(problem for path in shape.all_pages() for problem in snippets.check_marks(read(path)))


def test_no_leftovers() -> None:
    clean(problem for path in shape.text_files() for problem in shape.check_leftovers(path))


def test_each_phase_has_the_common_shape() -> None:
    clean(problem for folder in shape.phases() for problem in shape.check_phase(folder))


def test_glossary_defines_each_term_once() -> None:
    clean(glossary_check.check_terms(read(ROOT / "GLOSSARY.md")))


# citations


@needs_tree
def test_citations_say_what_stands_there() -> None:
    assert TREE is not None
    paths = list(citations.citing_files(ROOT))
    assert len(paths) > 500
    clean(problem for path in paths for problem in citations.check_file(path, TREE))


def test_no_line_of_the_pinned_release_is_named_without_its_root() -> None:
    loose = re.compile(r"(?<![\w/])(?:vllm|csrc|tests|docs|examples)/[\w./+-]+\.(?:py|cu|cuh|h|cpp|rs|md):\d")
    paths = [p for suffix in (".md", ".py") for p in files(ROOT, suffix)]
    found = []
    for path in [p for p in paths if p.relative_to(ROOT).parts[0] != "course"]:  # its tests have trees of their own
        lines = [line for line in path.read_text().splitlines() if loose.search(line) and "<!-- upstream: " not in line]
        found += [f"{path.relative_to(ROOT)}: {line.strip()}" for line in lines]
    assert not found, "write upstream/PATH:LINE, which is checked\n" + "\n".join(found)


# labs


def test_each_lab_has_the_common_shape() -> None:
    clean(problem for folder in lab_folders() for problem in shape.check_lab_folder(folder))


def test_each_lab_has_its_row() -> None:
    folders = {f"{folder.parents[1].name}/{folder.name}" for folder in lab_folders()}
    assert folders == {lab.key for lab in all_labs()}


def test_starters_and_solutions_are_in_step() -> None:
    clean(problem for folder in untouched() for problem in rules.check_lab(folder))


def test_the_first_starters_are_red_for_the_right_reason() -> None:
    """One lab of each of the first four phases; of all labs: `test_labs_contract.py`."""
    first = {folder.parents[1]: folder for folder in reversed(untouched())}
    clean(rules.check_starters(sorted(first.values())[:4]))


def test_listed_mistakes_have_patches_that_fit() -> None:
    clean(problem for folder in lab_folders() for problem in mistakes.check_mistakes(folder, run=False))


# markers


@pytest.mark.maintainer
def test_who_needs_torch_says_so() -> None:
    found = {path.relative_to(ROOT).as_posix(): unmarked(path.read_text(encoding="utf-8")) for path in test_files()}
    wrong = {path: names for path, names in found.items() if names}
    assert not wrong, f"mark these needs_torch (a module by pytestmark): {wrong}"


def test_each_marker_is_told_once() -> None:
    """pyproject.toml and the plugin, which a copy of a lab elsewhere has, say the same."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert set(table["markers"]) == set(MARKERS) - {m for m in MARKERS if m.startswith("provided")}


LINE = '-m "not (gpu or slow or maintainer)"'


def test_the_readme_leaves_out_three_marks_and_ci_runs_them() -> None:
    """Nothing is sampled away: what line 2 leaves out, CI runs by its name."""
    readme, runs = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", ".ci/run"))
    assert readme.count(f".venv/bin/pytest {LINE} -q -n 2\n") == 1
    assert '-m "not gpu and (slow or maintainer or needs_torch)"' in runs


def test_the_tests_of_the_machinery_belong_to_the_maintainer() -> None:
    """The exceptions are this file, which is about the course, and one run of each verb."""
    found = set()
    for path in sorted((ROOT / "course" / "tests").glob("test_*.py")):
        marks = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.Assign)]
        if not any(ast.unparse(n.targets[0]) == "pytestmark" and "mark.maintainer" in ast.unparse(n) for n in marks):
            found.add(path.name)
    assert found == {"test_course.py", "test_smoke.py"}
