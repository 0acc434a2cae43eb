"""The verb ``course tour``: walks the eleven stops of docs/evening.toml on a terminal, and says where to begin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

sys.path.insert(0, str(Path(__file__).resolve().parent))

import evening_page as evening

from course.labs import ROOT, LabError
from course.loop.record import read_json, write_json

RECORD = Path(".course") / "tour.json"
MINI_VLLM = (sys.executable, "-m", "mini_vllm.entrypoints.cli.main")

app = typer.Typer(add_completion=False)


def run_stop(stop: evening.Stop, **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs a stop's command in the root of the repository; ``how`` goes to ``subprocess.run``."""
    given = {"input": stop.feed} if stop.feed else {"stdin": subprocess.DEVNULL}
    return subprocess.run([*MINI_VLLM, *stop.run], cwd=ROOT, text=True, check=False, **given, **how)


@dataclass
class Walk:
    """One reader on the path: ``right`` says by key which questions were answered, and how."""

    say: Callable[[str], None]
    ask: Callable[[str], str]
    run: Callable[[evening.Stop], object]
    right: dict[str, bool]

    def stop(self, number: int, each: evening.Stop) -> None:
        """Idea, picture, prediction, run, question; the first answer to a question counts."""
        self.say(f"# {number}. {each.title}\n\n{each.idea}")
        pages = "\n".join(f"- {section.title}: `{section.link}`" for section in each.sections)
        self.say(f"**Read**, about {each.minutes} minutes with all that follows:\n\n{pages}")
        self.say(f"**The picture** is `{each.picture}`. {each.answers}")
        self.ask("Enter when you have read and looked ")
        self.say(f"**Predict.** {each.predict}")
        predicted = self.ask("Your prediction ").strip() or "nothing"
        self.say(f"You predicted: {predicted}. Now it runs:\n\n    {each.command}")
        self.run(each)
        self.say(f"**What it shows.** {each.why}")
        self._question(each)

    def _question(self, each: evening.Stop) -> None:
        asked = each.question
        letters = evening.LETTERS[: len(asked.options)]
        options = "\n".join(f"- **{letter}** {text}" for letter, text in zip(letters, asked.options, strict=True))
        self.say(f"**For your score.** {asked.ask}\n\n{options}")
        while (line := self.ask(f"{'/'.join(letters)} ").strip().lower()) not in tuple(letters):
            self.say(f"One of {', '.join(letters)}, please.")
        good = letters.index(line) == asked.answer
        self.right.setdefault(each.key, good)
        self.say(f"{'Right.' if good else f'No: {letters[asked.answer]}.'} {asked.why}")


def verdict(right: dict[str, bool], path: list[evening.Stop]) -> str:
    """The score and where to begin, or which stop is next."""
    score = f"{sum(right.get(each.key, False) for each in path)} of {len(path)} right"
    left = [number for number, each in enumerate(path, 1) if each.key not in right]
    if left:
        return f"{score} so far; stop {left[0]} is next: course tour"
    page, reason = evening.begin_with(right, path)
    return f"{score}. Begin with {page}: {reason}."


@app.command()
def tour(
    stop: Annotated[int, typer.Option(min=0, help="walk this stop alone; 0: from the first that is left")] = 0,
    show: Annotated[bool, typer.Option("--list", help="only list the stops and your score")] = False,
    again: Annotated[bool, typer.Option("--again", help="forget the score, begin with stop 1")] = False,
) -> None:
    """An evening's path: eleven stops, about four hours; then you know with which phase to begin."""
    out, path = Console(highlight=False), evening.stops()
    if stop > len(path):
        raise LabError(f"--stop {stop}: there are {len(path)} stops")
    right = {} if again else {key: value for key, value in read_json(ROOT / RECORD).items() if isinstance(value, bool)}
    if show:
        for number, each in enumerate(path, 1):
            mark = {True: "right", False: "wrong"}.get(right.get(each.key), "-")  # type: ignore[arg-type]
            out.print(f"{number:2} {mark:5} {each.title} ({each.minutes} min)", markup=False)
        out.print(verdict(right, path), markup=False, soft_wrap=True)
        return
    walk = Walk(
        say=lambda text: out.print(Markdown(text, hyperlinks=False), ""),
        ask=lambda prompt: out.input(prompt, markup=False),
        run=run_stop,
        right=right,
    )
    todo = [(n, each) for n, each in enumerate(path, 1) if (n == stop if stop else each.key not in right)]
    try:
        for number, each in todo:
            walk.stop(number, each)
            write_json(ROOT / RECORD, right)
    except (KeyboardInterrupt, EOFError):
        out.print("\nUntil the next time.")
    out.print(verdict(right, path), markup=False, soft_wrap=True)
