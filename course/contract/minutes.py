"""How long a lab takes: an estimate by a rule, which ``labs.toml`` and the READMEs follow.

Read: the README and the docstrings of ``starter.py``, 120 words a minute. Write: two lines a minute. Understand: two
tests a minute. What careful readers needed: 15 to 45 minutes in phases 02 and 06, where the rule says 25 to 70; 45 in
labs 00-03 and 01-03, where it says 45 and 35. ``python -m course.contract.minutes`` writes it everywhere.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from course.contract.rules import learner_functions, parse_file
from course.labs import ROOT, TABLE, functions, lab_folders, lab_of
from course.pages.markdown import Problem, read

WORDS, LINES, TESTS = 120, 2, 2  # a minute
STEP, SLACK = 5, 10  # what is stated may lie SLACK minutes off, so that not every edit moves it


def estimate(folder: Path) -> int:
    """Minutes for a lab."""
    starter, solution, tests = (parse_file(folder / f"{name}.py") for name in ("starter", "solution", "test_lab"))
    documented = [n for n in ast.walk(starter) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    words = read(folder / "README.md").words() + sum(len((ast.get_docstring(n) or "").split()) for n in documented)
    names = learner_functions(folder)
    mine = [node for name, node in functions(solution) if name in names]
    bodies = [part for node in mine for part in node.body[ast.get_docstring(node, clean=False) is not None :]]
    lines = len({n.lineno for part in bodies for n in ast.walk(part) if isinstance(n, (ast.stmt, ast.expr))})
    count = sum(name.rpartition(".")[2].startswith("test_") for name, _ in functions(tests))
    return max(STEP, STEP * round((words / WORDS + lines / LINES + count / TESTS) / STEP))


def _places(folder: Path) -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Files that state a lab's minutes, and the pattern that finds the number (group 2)."""
    table = rf"(\[{re.escape(folder.parents[1].name)}\.{re.escape(folder.name)}\]\n(?:[^\[\n].*\n)*?minutes = )(\d+)"
    yield TABLE, re.compile(table)
    yield folder / "README.md", re.compile(r"(\*\*Time\*\* \| )(\d+)(?= minutes \(an estimate\))")
    yield folder.parent / "README.md", re.compile(rf"(^### {folder.name[4:6]} · .* · )(\d+)(?= minutes)", re.M)


def check(folder: Path) -> list[Problem]:
    """The minutes stated are the same everywhere, called an estimate, and near the rule's."""
    problems, wanted = [], estimate(folder)
    lab, write = lab_of(folder), "; `python -m course.contract.minutes` writes the rule's"
    assert lab is not None
    if abs(lab.minutes - wanted) > SLACK or lab.minutes % STEP:
        problems.append(Problem(TABLE, 1, f"{lab.name}: minutes = {lab.minutes}, by the rule {wanted}{write}"))
    _, (own, head), (page, heading) = _places(folder)
    stated = [head.search(own.read_text(encoding="utf-8"))]
    stated += [heading.search(page.read_text(encoding="utf-8"))] if page.is_file() else []
    if stated[0] is None or any(each and int(each[2]) != lab.minutes for each in stated):
        problems.append(Problem(own, 1, f"{lab.name} must state `{lab.minutes} minutes (an estimate)`{write}"))
    return problems


def write(root: Path = ROOT) -> None:
    """Puts the rule's minutes wherever they are stated and not near it."""
    for folder in lab_folders(root):
        lab, wanted = lab_of(folder), estimate(folder)
        if lab is not None and abs(lab.minutes - wanted) <= SLACK and lab.minutes % STEP == 0:
            wanted = lab.minutes
        for path, pattern in [place for place in _places(folder) if place[0].is_file()]:
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"(\*\*Time\*\* \| \d+ minutes)(?! \(an est)", r"\1 (an estimate)", text)
            path.write_text(pattern.sub(rf"\g<1>{wanted}", text), encoding="utf-8")


if __name__ == "__main__":
    write()
