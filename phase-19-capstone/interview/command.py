"""The verb ``course interview``: sits on a terminal what ``sitting.py`` asks, and shows the matrix."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from course.labs import ROOT, load

HERE = Path(__file__).parent
RECORD = Path(".course") / "interview.jsonl"
PAGES = 3

sitting: Any = load(HERE / "sitting.py")
app = typer.Typer(add_completion=False)


def matrix(found: Any) -> Table:
    """The ten rows of the map with their means and dates."""
    rows = Table("competency", "mean of 3", "last asked", title="Where you stand")
    for name, (mean, date) in found.rows.items():
        rows.add_row(name, "[dim]never asked[/]" if mean is None else f"{mean:.1f}", date)
    return rows


def to_read(found: Any, root: Path) -> str:
    """The pages to read next, and what nobody knows."""
    if all(mean is None for mean, _ in found.rows.values()):
        return "Nothing was asked yet."
    guides = [next(root.glob(f"phase-{phase:02d}-*/00-guide.md"), None) for phase in found.read]
    pages = [guide.relative_to(root).as_posix() for guide in guides if guide is not None][:PAGES]
    read = f"Read again: {', '.join(pages)}." if pages else "No row that was asked has a mean of 1 or less."
    unknown = f" Never asked, so not known: {', '.join(found.unknown)}." if found.unknown else ""
    return read + unknown


@app.command()
def interview(
    session: Annotated[int, typer.Option(min=0, max=4, help="1 to 4; 0: all four, 165 minutes")] = 0,
    seed: Annotated[int | None, typer.Option(help="draws the same questions again; left out: by chance")] = None,
    phases: Annotated[str, typer.Option(help="one question from each of these instead: 09,17 or 11-13 or all")] = "",
    show: Annotated[bool, typer.Option("--matrix", help="only show where you stand")] = False,
) -> None:
    """A mock staff loop: timed, random questions from all phases; you mark yourself before you see the answer."""
    out, record = Console(highlight=False), ROOT / RECORD
    past, damaged = sitting.read_record(record)
    if damaged:
        out.print(f"{damaged} lines of {RECORD.as_posix()} cannot be read and are left out.")
    if not show:
        drawn_by = secrets.randbelow(10_000) if seed is None else seed
        chosen = [sitting.by_phase(phases)] if phases else sitting.sessions()
        chosen = [each for each in chosen if phases or session in (0, each.number)]
        named = f" --phases {phases}" if phases else f" --session {session}" if session else ""
        again = f"--seed {drawn_by}{named}"
        out.print(f"Seed {drawn_by}: with the same record, {again} draws the same questions.")
        out.print(f"{sitting.RUBRIC}\nCtrl-C ends; what is scored is kept.\n")
        past += sit_all(chosen, drawn_by, [answer.key for answer in past], out, record)
    found = sitting.verdict(past, ROOT)
    out.print(matrix(found))
    out.print(to_read(found, ROOT), markup=False, soft_wrap=not out.is_terminal)


def sit_all(chosen: list[Any], seed: int, seen: list[str], out: Console, record: Path) -> list[Any]:
    """Sits one session after the other; a sitting that is broken off keeps what was scored."""
    desk = sitting.Desk(
        say=lambda text: out.print(Markdown(text, hyperlinks=False)),
        ask=lambda prompt: out.input(prompt, markup=False),
        record=record,
    )
    drawn = [(each, sitting.questions(each, ROOT, seed, seen)) for each in chosen]
    try:
        for each, asked in drawn:
            sitting.sit(each, asked, seed, desk)
    except (KeyboardInterrupt, EOFError):
        out.print("\nBroken off.")
    return list(desk.made)
