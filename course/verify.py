"""`course verify`: everything that has to be true of the course, check by check; or, where asked for, mutation."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from course.contract import equivalent, minutes, mistakes, mutation, rules
from course.contract.mutation import Score
from course.labs import ROOT, Lab, LabError, all_labs, lab_folders, lab_of
from course.pages import citations, glossary_check, provenance, shape, snippets
from course.pages.markdown import Problem, read

ABSENT = "upstream/ is absent: run `course upstream`"


@dataclass(frozen=True)
class Check:
    """``run`` returns what is wrong; ``why_not`` says why it cannot run here, "" where it can."""

    name: str
    run: Callable[[], list[Problem]]
    why_not: Callable[[], str] = lambda: ""


@dataclass
class Row:
    """What a check found."""

    name: str
    problems: list[Problem] = field(default_factory=list)


def _over_labs(one: Callable[[Path], list[Problem]], folders: Sequence[Path]) -> Callable[[], list[Problem]]:
    return lambda: [problem for folder in folders for problem in one(folder)]


def checks(folders: Sequence[Path], root: Path = ROOT) -> list[Check]:
    """All checks; those of labs only for ``folders``."""
    return [
        Check("folders have their shape", lambda: shape.check_shape(root)),
        Check("links", lambda: [p for path in shape.all_pages(root) for p in shape.check_links(read(path), root)]),
        Check("glossary", lambda: glossary_check.check(root)),
        Check("no notes to self", lambda: [p for path in shape.text_files(root) for p in shape.check_leftovers(path)]),
        Check("figures in pages: python blocks run, shown output is theirs", lambda: check_snippets(root)),
        Check("figures in pages: pictures are what their code draws", lambda: check_pictures(root)),
        Check("citations", lambda: check_citations(root), lambda: "" if citations.pinned_tree(root) else ABSENT),
        Check("captures say where they come from", lambda: provenance.check(root)),
        Check("labs.toml has every lab", lambda: check_rows(root)),
        Check("minutes of labs are those of the rule", _over_labs(minutes.check, folders)),
        Check("starters and solutions in step", _over_labs(rules.check_lab, folders)),
        Check("starters red for the right reason", lambda: rules.check_starters(folders, root)),
        Check("listed mistakes are caught, by failures that teach", _over_labs(mistakes.check_mistakes, folders)),
        Check("arguments for surviving mutants", lambda: equivalent.check(folders)),
    ]


def check_citations(root: Path) -> list[Problem]:
    """Every citation of every page and Python file, against ``upstream/``."""
    tree = citations.pinned_tree(root)
    assert tree is not None
    return [p for path in citations.citing_files(root) for p in citations.check_file(path, tree)]


def check_snippets(root: Path) -> list[Problem]:
    """Blocks run, exceptions give their reason."""
    parsed = [read(path) for path in shape.all_pages(root)]
    return [p for page in parsed for p in (*snippets.check_marks(page), *snippets.run_page(page, root))]


def picture_scripts(root: Path = ROOT) -> list[Path]:
    """The scripts that draw pictures."""
    return [*sorted(root.glob("phase-*/figures.py")), root / "docs" / "engine_figure.py"]


def compare_pictures(script: Path, root: Path = ROOT) -> tuple[bool, str]:
    """Whether a script finds what it drew unchanged (``--check``), and all that it says."""
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def check_pictures(root: Path) -> list[Problem]:
    """The scripts that draw pictures find what they drew unchanged."""
    problems = []
    for script in filter(Path.is_file, picture_scripts(root)):
        unchanged, text = compare_pictures(script, root)
        if not unchanged:
            said = text.strip().splitlines() or ["the pictures are not what it draws"]
            problems.append(Problem(script, 1, f"{said[-1]}; run it to draw them anew, and look at what changed"))
    return problems


def check_rows(root: Path) -> list[Problem]:
    """Every lab folder has a row in ``labs.toml``, and every row a folder."""
    table = root / "course" / "labs.toml"
    have = {f"{folder.parents[1].name}/{folder.name}" for folder in lab_folders(root)}
    want = {lab.key for lab in all_labs()}
    wrong = [f"no row for {key}" for key in sorted(have - want)]
    wrong += [f"a row for {key}, which is no folder" for key in sorted(want - have)]
    return [Problem(table, 1, text) for text in wrong]


def run(labs: Sequence[Lab], mutate: bool, console: Console, root: Path = ROOT) -> int:
    """Prints each check and what is wrong; with ``mutate`` only the mutation. Returns the number of problems."""
    folders = [lab.folder for lab in labs] or lab_folders(root)
    rows = [] if mutate else [_row(check, console, root) for check in checks(folders, root)]
    for row in rows:
        _show_problems(row, console, root)
    if scores := mutate_all(folders, console) if mutate else []:
        show_scores(scores, console)
    return sum(len(row.problems) for row in rows) + sum(not passes(score) for _, score in scores)


def _show_problems(row: Row, console: Console, root: Path) -> None:
    if row.problems:
        console.print(f"\n[bold]{escape(row.name)}[/]", highlight=False)
    for problem in sorted(row.problems, key=lambda p: (p.path.as_posix(), p.line)):
        place = str(problem).replace(root.as_posix() + "/", "")
        console.print(f"  {escape(place)}", highlight=False, soft_wrap=True)


def _row(check: Check, console: Console, root: Path) -> Row:
    if reason := check.why_not():
        console.print(f"[yellow]skipped[/]    {check.name}: {reason}")
        return Row(check.name)
    start = time.monotonic()
    with console.status(check.name):
        found = _safely(check, root)
    seconds = round(time.monotonic() - start, 1)
    word = "[green]ok[/]       " if not found else f"[red]{len(found):>3} wrong[/]"
    console.print(f"{word}  {check.name} [dim]({seconds} s)[/]", highlight=False, soft_wrap=True)
    return Row(check.name, found)


def _safely(check: Check, root: Path) -> list[Problem]:
    """A check that cannot even read what it checks has found something too."""
    try:
        return check.run()
    except (OSError, SyntaxError, ValueError, LabError) as error:
        return [Problem(root / "course", 1, f"{check.name}: {type(error).__name__}: {error}")]


def mutate_all(folders: Sequence[Path], console: Console) -> list[tuple[Lab, Score | str]]:
    """The mutation score of each lab, or why there is none; labs whose modules are not installed are left out."""
    found: list[tuple[Lab, Score | str]] = []
    for number, folder in enumerate(folders, 1):
        lab = lab_of(folder)
        assert lab is not None
        if lab.missing_modules:  # its tests skip here, so every mutant would survive
            console.print(f"[yellow]skipped[/]    {lab.name}: needs {', '.join(lab.missing_modules)}")
            continue
        with console.status(f"mutating {lab.name} ({number} of {len(folders)})"):
            try:
                found.append((lab, mutation.score(folder)))
            except LabError as error:
                found.append((lab, str(error)))
    return found


def passes(score: Score | str) -> bool:
    """Every mutant is killed, or argued."""
    return not isinstance(score, str) and not score.survivors


def show_scores(scores: Sequence[tuple[Lab, Score | str]], console: Console) -> None:
    """The survivors, then the table."""
    done = [(lab, score) for lab, score in scores if isinstance(score, Score)]
    if any(score.survivors for _, score in done):
        text = "Survivors: test them, or give the reason why no test can in course/equivalent.toml"
        console.print(text, soft_wrap=True)
    for lab, score in done:
        for mutant in score.survivors:
            place = f"{lab.phase}/labs/{lab.slug}/solution.py:{mutant.line}:{mutant.column + 1}"
            console.print(f"  {place}: {escape(mutant.name)}", highlight=False, soft_wrap=True)
    table = Table(Column("lab", no_wrap=True), title="mutation of solutions")
    for name in ("mutants", "killed", "of them hung", "argued", "survivors", "score", "s"):
        table.add_column(name, justify="right")
    for lab, result in scores:
        if isinstance(result, str):
            text = f"{lab.phase}/labs/{lab.slug}/solution.py:1: {escape(result)}"
            console.print(f"  [red]{text}[/]", highlight=False, soft_wrap=True)
            table.add_row(lab.name, *[""] * 5, "[red]none[/]", "")
        else:
            table.add_row(lab.name, *_cells(result, passes(result)))
    table.add_section()
    parts = [score for _, score in done]
    sums = [sum(getattr(s, name) for s in parts) for name in ("mutants", "killed", "timeouts", "argued", "seconds")]
    gone = tuple(m for s in parts for m in s.survivors)
    whole = Score("all", sums[0], sums[1], gone, timeouts=sums[2], argued=sums[3], seconds=sums[4])
    table.add_row(f"{len(parts)} labs", *_cells(whole, all(passes(result) for _, result in scores)))
    console.print(table)


def _cells(score: Score, good: bool) -> list[str]:
    share = f"[{'green' if good else 'red'}]{100 * score.share:.1f} %[/]"
    counts = (score.mutants, score.killed, score.timeouts, score.argued, len(score.survivors))
    return [*map(str, counts), share, f"{score.seconds:.0f}"]


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
