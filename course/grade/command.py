"""The verb ``course grade``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from course.grade.grading import Grades

err = Console(stderr=True)


def grade(
    submissions: Annotated[Path, typer.Argument(help="a folder of folders, zips and bundles; or one of these")],
    labs: Annotated[str, typer.Option(help="labs or phases, with commas: 02 or 02-01,02-02")] = "all",
    form: Annotated[str, typer.Option("--format", help="table, csv, json or junit")] = "table",
    config: Annotated[Path | None, typer.Option(help="weights, deadlines and limits (TOML)")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file instead of the terminal")] = None,
    jobs: Annotated[int, typer.Option(help="submissions at a time; 0: one more than cores")] = 0,
    similarity: Annotated[float, typer.Option(help="list pairs alike by at least this; 0: none")] = 0.9,
) -> None:
    """Grades a class: every [bold]starter.py[/] in a sandbox, partial credit by test, look-alikes."""
    from course.grade.grading import grade as run
    from course.grade.grading import untouched_starter, walls
    from course.grade.intake import take_in
    from course.grade.report import FORMATS, lacking
    from course.grade.settings import check_keys, read_settings
    from course.grade.similarity import similar
    from course.labs import LabError, find_labs, lab_folders, lab_of

    if form not in FORMATS:
        raise LabError(f"--format {form!r}: choose one of {', '.join(FORMATS)}")
    if output is not None and (output.is_dir() or not output.resolve().parent.is_dir()):
        raise LabError(f"--output {output}: not a file in a folder that is there")
    settings = read_settings(config)
    every = [lab for lab in map(lab_of, lab_folders()) if lab is not None]
    check_keys(settings, every)
    wanted = every if labs == "all" else [lab for name in labs.split(",") for lab in find_labs(name)]
    chosen = sorted(dict.fromkeys(wanted), key=lambda lab: lab.key)
    taken = take_in(submissions, every, settings.limits.file_kb << 10)
    if lack := walls()[1]:  # before anything of a learner's runs
        _say(lacking(lack))
    with err.status("reading") as status:
        private = [submissions.resolve()]
        made = run(taken, chosen, settings, jobs, private, note=lambda text: status.update(escape(text)))
        if similarity:
            status.update("look-alikes")
            starters = {lab: untouched_starter(lab.folder) for lab in made.labs}
            texts = {lab: (text, (lab.folder / "solution.py").read_bytes()) for lab, text in starters.items()}
            made.pairs = similar(taken, texts, similarity)
    _write(made, form, output)


def _write(made: Grades, form: str, output: Path | None) -> None:
    """The report to the file or the terminal; what a person should read beside it, to the error stream."""
    from course.grade.report import notes, render

    if output is None and sys.stdout.isatty():
        sys.stdout.write(render(made, form, shutil.get_terminal_size().columns))
    elif output is None:
        sys.stdout.write(render(made, form))
    else:
        output.write_text(render(made, form), encoding="utf-8")
        _say(f"{output}: {len(made.submissions)} submissions, {len(made.labs)} labs")
    absent = sorted(set(made.settings.submitted) - {submission.name for submission in made.submissions})
    unused = [f"[submitted] has a row {name!r}, but nobody of that name handed in" for name in absent]
    for text in [*(notes(made) if form != "table" else []), *unused]:
        _say(text)


def _say(text: str) -> None:
    err.print(text, markup=False, highlight=False, soft_wrap=True)
