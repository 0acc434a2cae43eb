"""`course verify`: everything that has to be true of the course, check by check."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from course import citations, contract, mistakes, mutation, pages, snippets
from course.labs import ROOT, Lab, LabError, all_labs, lab_folders, lab_of
from course.markdown import Problem, read

PROVENANCE = ("machine", "versions", "command", "date")


@dataclass(frozen=True)
class Check:
    """One line of the report. ``run`` returns what is wrong; ``why_not`` says why it cannot run here, "" where it
    can."""

    name: str
    run: Callable[[], list[Problem]]
    why_not: Callable[[], str] = lambda: ""


def _over_labs(one: Callable[[Path], list[Problem]], folders: Sequence[Path]) -> Callable[[], list[Problem]]:
    return lambda: [problem for folder in folders for problem in one(folder)]


def checks(folders: Sequence[Path], root: Path = ROOT) -> list[Check]:
    """All checks; those of labs only for ``folders``."""
    return [
        Check("folders have their shape", lambda: pages.check_shape(root)),
        Check("links", lambda: [p for path in pages.all_pages(root) for p in pages.check_links(read(path), root)]),
        Check("glossary", lambda: pages.check_glossary(read(root / "GLOSSARY.md"))),
        Check("no notes to self", lambda: [p for path in pages.text_files(root) for p in pages.check_leftovers(path)]),
        Check("python blocks of pages run", lambda: check_snippets(root)),
        Check("citations", lambda: check_citations(root), lambda: _no_tree(root)),
        Check("captures say where they come from", lambda: check_captures(root)),
        Check("labs.toml has every lab", lambda: check_rows(root)),
        Check("starters and solutions in step", _over_labs(contract.check_lab, folders)),
        Check("starters red for the right reason", lambda: contract.check_starters(folders, root)),
        Check("listed mistakes are caught", _over_labs(mistakes.check_mistakes, folders)),
    ]


def _no_tree(root: Path) -> str:
    return "" if citations.pinned_tree(root) else "upstream/ is absent: run `course upstream`"


def check_citations(root: Path) -> list[Problem]:
    tree = citations.pinned_tree(root)
    assert tree is not None
    return [p for path in citations.citing_files(root) for p in citations.check_file(path, tree)]


def check_snippets(root: Path) -> list[Problem]:
    """Blocks run, exceptions give their reason."""
    parsed = [read(path) for path in pages.all_pages(root)]
    return [p for page in parsed for p in (*snippets.check_marks(page), *snippets.run_page(page, root))]


def check_rows(root: Path) -> list[Problem]:
    """Every lab folder has a row in ``labs.toml``, and every row a folder."""
    table = root / "course" / "labs.toml"
    have = {f"{folder.parents[1].name}/{folder.name}" for folder in lab_folders(root)}
    want = {lab.key for lab in all_labs()}
    return [Problem(table, 1, f"no row for {key}") for key in sorted(have - want)] + [
        Problem(table, 1, f"a row for {key}, which is no folder") for key in sorted(want - have)
    ]


def check_captures(root: Path) -> list[Problem]:
    """Each ``captured/`` folder has a ``provenance.json`` that names machine, versions, command and date."""
    problems = []
    for folder in sorted(root.glob("phase-*/**/captured")):
        path = folder / "provenance.json"
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problems.append(Problem(path, 1, f"unreadable: {error}"))
            continue
        keys = _keys(facts)
        missing = [word for word in PROVENANCE if not any(key.startswith(word) for key in keys)]
        if missing:
            problems.append(Problem(path, 1, f"does not say: {', '.join(missing)}"))
    return problems


def _keys(facts: object) -> list[str]:
    """All keys of nested JSON, in lower case."""
    inner = facts.values() if isinstance(facts, dict) else facts if isinstance(facts, list) else ()
    own = [str(key).lower() for key in facts] if isinstance(facts, dict) else []
    return own + [key for value in inner for key in _keys(value)]


def run(labs: Sequence[Lab], mutate: bool, console: Console, root: Path = ROOT) -> int:
    """Runs all checks and prints one line each, then what is wrong. Returns the number of problems."""
    folders = [lab.folder for lab in labs] or lab_folders(root)
    problems: list[Problem] = []
    for check in checks(folders, root):
        start = time.monotonic()
        if reason := check.why_not():
            console.print(f"[yellow]skipped[/]  {check.name}: {reason}")
            continue
        with console.status(check.name):
            found = _safely(check, root)
        word = "[green]ok[/]     " if not found else f"[red]{len(found):>3} wrong[/]"
        console.print(f"{word}  {check.name} [dim]({time.monotonic() - start:.1f} s)[/]")
        problems += found
    for problem in problems:
        console.print(f"  {escape(_relative(problem, root))}", highlight=False, soft_wrap=True)
    weak = mutation_table(folders, console) if mutate else 0
    return len(problems) + weak


def _safely(check: Check, root: Path) -> list[Problem]:
    """A check that cannot even read what it checks has found something too."""
    try:
        return check.run()
    except (OSError, SyntaxError, ValueError, LabError) as error:
        return [Problem(root / "course", 1, f"{check.name}: {type(error).__name__}: {error}")]


def _relative(problem: Problem, root: Path) -> str:
    return str(problem).replace(root.as_posix() + "/", "")


def mutation_table(folders: Sequence[Path], console: Console) -> int:
    """Prints the mutation score of each lab and the survivors; returns how many labs are below the goal."""
    table = Table("lab", "mutants", "killed", "score", title="mutation of solutions")
    survivors, weak = [], 0
    for folder in folders:
        lab = lab_of(folder)
        assert lab is not None
        with console.status(f"mutating {lab.name}"):
            try:
                score = mutation.score(folder)
            except LabError as error:
                table.add_row(lab.name, "", "", f"[red]{escape(str(error))}[/]")
                weak += 1
                continue
        good = score.share >= mutation.GOAL
        weak += not good
        colour = "green" if good else "red"
        table.add_row(lab.name, str(score.mutants), str(score.killed), f"[{colour}]{score.share:.0%}[/]")
        survivors += [f"{lab.key}/solution.py:{m.line}: {m.name}" for m in score.survivors]
    console.print(table)
    if survivors:
        console.print("Survivors: test them, or give the reason why no test can in course/equivalent.toml")
    for line in survivors:
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    return weak


def changed_labs(root: Path = ROOT, base: str = "HEAD~1") -> list[Path]:
    """Folders of labs that differ from a commit, or hold files that git does not know yet; all where git cannot say."""
    commands = (["diff", "--name-only", base], ["ls-files", "--others", "--exclude-standard"])
    names: list[str] = []
    for command in commands:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=False)
        if done.returncode:
            return lab_folders(root)
        names += done.stdout.splitlines()
    return [f for f in lab_folders(root) if any(n.startswith(f.relative_to(root).as_posix() + "/") for n in names)]
