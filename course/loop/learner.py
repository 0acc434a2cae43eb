"""The verbs of the learner's loop: next, watch, hint, diff, reset, update, serve. ``course.cli`` adds them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from course.labs import ROOT, Lab, LabError, find_labs, lab_of, stubs
from course.loop import hints, record
from course.loop.outcomes import digest, fitted, recall

if TYPE_CHECKING:
    from course.loop.gitwork import Updated

SIZE = shutil.get_terminal_size() if os.environ.get("TERM") == "dumb" else (None, None)  # there rich takes 80 for it
out = Console(highlight=False, width=SIZE[0], height=SIZE[1])
LAB = typer.Argument(help="a lab (00-03, sampling, its folder); the next one where left out")
MANY_LINES = 40
HOST = "127.0.0.1"


def say(text: str = "") -> None:
    """Prints plain text: on a terminal its lines break between words, in a pipe they stay whole."""
    out.print(fitted(text, out.width) if out.is_terminal else text, markup=False, soft_wrap=True)


def one_lab(text: str) -> Lab:
    """The lab that is meant, or the next one. Raises :class:`LabError` where it is not exactly one."""
    from course.loop.progress import all_progress, next_lab

    if not text:
        lab = next_lab(all_progress())
        if lab is None:
            raise LabError("all labs are done; name one, for example `00-03`")
        return lab
    found = find_labs(text)
    if len(found) > 1:
        raise LabError(f"{text!r} means {len(found)} labs; name one of {', '.join(lab.number for lab in found)}")
    return found[0]


def run_tests(paths: Sequence[str], *options: str, impl: str = "starter", **how: Any) -> int:
    """Pytest's exit status for labs; ``how`` goes to ``subprocess.run``."""
    env = {**os.environ, "LAB_IMPL": impl, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_timeout", *options, *paths]
    return subprocess.run(command, cwd=ROOT, env=env, check=False, **how).returncode


def next_(lab: Annotated[str, LAB] = "") -> None:
    """The next lab: what to read, what is still to be written, how to test it."""
    chosen = one_lab(lab)
    out.print(f"[bold]{chosen.name}[/]   {chosen.tag}, about {chosen.minutes} minutes")
    if chosen.prerequisites:
        say(f"after    {', '.join(chosen.prerequisites)}")
    say_task(chosen)
    say(f"test     course test {chosen.number}, or on each save: course watch {chosen.number}")
    say(f"stuck    course hint {chosen.number}")


def say_task(lab: Lab, most: int | None = None) -> None:
    """What to install and to read for a lab, and which functions to write: all, or the first ``most``."""
    if lab.missing_modules:
        say(f"lacks    {', '.join(lab.missing_modules)}: `course doctor` says how to install it")
    folder = f"{lab.phase}/labs/{lab.slug}"
    say(f"read     {lab.phase}/00-guide.md\n         {folder}/README.md\nedit     {folder}/starter.py")
    found = stubs(lab.folder / "starter.py")
    for line, name, sentence in found[:most]:
        say(f"         line {line}, {name}: {sentence}")
    if rest := len(found) - len(found[:most]):
        say(f"         and {rest} more")


def watch(lab: Annotated[str, LAB] = "") -> None:
    """Runs a lab's tests on every save; keys: [bold]n[/] next lab, [bold]h[/] hint, [bold]d[/] diff, [bold]c[/] check
    all labs that you began, [bold]q[/] quit."""
    from course.loop import screen

    screen.run(one_lab(lab))


def hint(
    lab: Annotated[str, LAB] = "",
    again: Annotated[bool, typer.Option("--again", help="the hints that you have seen, once more")] = False,
) -> None:
    """A lab's hints, one more each time, each more telling: first what helps with the first red test."""
    chosen = one_lab(lab)
    red = hints.red_tests(chosen)
    if not again:
        say_looks(chosen)
    shown, total = hints.next_hints(chosen, again)
    if not shown and again:
        say(f"You have seen no hint of {chosen.name} yet: course hint {chosen.number}")
    elif not shown:
        say(
            f"You have seen all {total} hints of {chosen.name}. Once more: course hint {chosen.number} --again. "
            f"The reference: course diff {chosen.number}"
        )
    for n, each in shown:
        named = next((test for test in red if test in each.tests), "")
        words = f", for {named}" if named and not again else ""
        out.print(f"[bold]{chosen.name}, hint {n} of {total}{words}[/]")
        out.print(Markdown(f"**{each.title}**\n\n{each.text}", hyperlinks=False))


def say_looks(lab: Lab) -> None:
    """Names the listed mistakes that the lab's last run looks like, where it does."""
    from course.loop.looks import looks_like

    with out.status("comparing with the listed mistakes"):
        found = looks_like(lab)
    if found:
        names = " or ".join(f"*{words.rstrip('.')}*" for words in found)
        say(f"this looks like {names} (the README's common mistakes)")


def diff(lab: Annotated[str, LAB] = "") -> None:
    """Your functions and the reference's side by side: after the lab passes, or when you ask twice."""
    from course.loop.progress import lab_progress
    from course.loop.sidebyside import compare

    chosen = _of_last_run(lab)
    starter = chosen.folder / "starter.py"
    if not starter.is_file():
        raise LabError(f"there is no starter.py; `course reset {chosen.number}` brings it back")
    state = lab_progress(chosen.folder, recall(ROOT))
    if not state.done and record.recall("asked").get(chosen.key) is None:
        record.remember("asked", chosen.key, digest(starter))
        say(
            f"{chosen.name} does not pass yet ({state.state}), and the reference gives everything away. "
            f"A hint gives less: course hint {chosen.number}. To see the reference all the same, ask again."
        )
        raise typer.Exit(1)
    lines = list(compare(starter, chosen.folder / "solution.py", out.width))
    long = out.is_terminal and not out.is_dumb_terminal and len(lines) > max(MANY_LINES, out.height)
    with out.pager() if long else nullcontext():
        say("\n".join(lines))


def _of_last_run(text: str) -> Lab:
    """The lab that is meant; without a name, the one that was edited last."""
    from course.loop.progress import all_progress

    if text:
        return one_lab(text)
    begun = [p.lab for p in all_progress() if p.state != "not started"]
    if not begun:
        raise LabError("no lab is begun; name one, for example `course diff 00-03`")
    files = {lab: lab.folder / "starter.py" for lab in begun}
    return max(begun, key=lambda lab: files[lab].stat().st_mtime if files[lab].is_file() else 0.0)


def reset(lab: Annotated[str, typer.Argument(help="a lab (00-03, sampling, its folder)")]) -> None:
    """Puts the original [bold]starter.py[/] of a lab in the place of yours, and keeps a copy of yours."""
    from course.loop import gitwork

    chosen = one_lab(lab)
    starter = chosen.folder / "starter.py"
    there = starter.is_file()
    copy = gitwork.reset(starter)
    if copy is not None:
        say(f"{chosen.name} is as the course gives it. Yours is kept in {copy.relative_to(ROOT).as_posix()}")
    else:
        say(f"{chosen.name}: {'starter.py is the original already' if there else 'starter.py is there again'}.")


def update(source: Annotated[str, typer.Option(help="REMOTE/BRANCH; left out: what your branch follows")] = "") -> None:
    """Takes a newer course into this clone; every [bold]starter.py[/] that you edited stays yours."""
    from course.loop import gitwork, held

    if record.recall("update", ROOT).get("begun"):
        say("The last `course update` was ended midway; your files as they were before it are under .course/kept.")
    record.remember("update", "begun", True, ROOT)
    held.stamp_record(ROOT)  # before the labs change: what is done now is done under the labs of now
    try:
        _tell_update(gitwork.update(ROOT, source))
    finally:
        record.remember("update", "begun", False, ROOT)


def _tell_update(done: Updated) -> None:
    if done.before == done.after:
        say("The course is up to date.")
        return
    say(f"From {done.before[:10]} to {done.after[:10]}.")
    for name in done.stayed:
        say(f"yours stays, the course changed it too: {name} (copy under .course/kept)")
        say(f"    what the course changed: git diff {done.before[:10]}...{done.after[:10]} -- {name}")
    for line in done.moved:
        say(line)
    for folder in done.tests:
        lab = lab_of(folder)
        say(f"new tests: {folder}; run `course test {lab.number if lab else folder}`")
    if done.install:
        say("The dependencies changed: pip install -e .")


def serve(port: Annotated[int, typer.Option(min=1, max=65535, help="where to listen")] = 8000) -> None:
    """The website on this machine, made again when a page is saved; Ctrl-C ends it."""
    if importlib.util.find_spec("material") is None:
        raise LabError('the website needs mkdocs and mkdocs-material: pip install -e ".[docs]"')
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise LabError(f"port {port} is taken; choose another, for example `course serve --port {port + 1}`")
    command = [sys.executable, "-m", "mkdocs", "serve", "--dev-addr", f"{HOST}:{port}", "--livereload"]
    with suppress(KeyboardInterrupt):
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme's, at each start
        raise typer.Exit(subprocess.run(command, cwd=ROOT, env=env, check=False).returncode)


def add_to(app: typer.Typer) -> None:
    """Adds these verbs to the command line."""
    app.command("next")(next_)
    for verb in (watch, hint, diff, reset, update, serve):
        app.command(verb.__name__)(verb)
