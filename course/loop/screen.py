"""The screen of `course watch`: how far the course is, what the tests say, what a lab unlocked, and keys to go on."""

import subprocess
import sys
from contextlib import suppress
from subprocess import DEVNULL

import typer
from rich.control import Control
from rich.segment import ControlType

from course.labs import COURSE, ROOT, Lab, LabError, tomllib
from course.loop import learner, watch
from course.loop.keys import REDRAW, Keys, keys
from course.loop.learner import out, say
from course.loop.outcomes import recall
from course.loop.progress import LabProgress, all_progress, lab_progress, next_lab, ready

PAYOFFS = tomllib.loads((COURSE / "plugs.toml").read_text(encoding="utf-8"))["payoff"]


def bar(lab: Lab, labs: list[LabProgress], width: int, utf: bool = True) -> str:
    """``✓ 00-01 kv-cache-speedup · 1/48 ▓░░``, in at most ``width`` columns."""
    done = [p.lab for p in labs if p.done]
    yes, no, dot, full, empty = "✓▸·▓░" if utf else "+>-#."
    text = f"{yes if lab in done else no} {lab.name} {dot} {len(done)}/{len(labs)} "
    cells = max(3, min(40, width - len(text) - 1))
    filled = -(-len(done) * cells // len(labs))  # the first lab fills a cell
    return text + full * filled + empty * (cells - filled)


class Screen:
    """Of one lab; ``following`` is the lab that comes after it, None where the learner has left."""

    def __init__(self, lab: Lab, typed: Keys) -> None:
        self.lab, self.typed, self.name = lab, typed, lab.number
        self.running, self.passed, self.rewarded = True, False, False
        self.following: Lab | None = None

    def note(self, text: str) -> None:
        """What the watcher says. Each run begins on an empty screen, and a lab that passes has one for itself."""
        self.running = text != "waiting"
        if text == "running":
            self.head()
        elif text.startswith("all pass"):
            self.passed = True
            self.head()
            say(f"{text.capitalize()}.")
            self.reward()
        elif text == "waiting":
            if not self.passed:
                learner.say_looks(self.lab)
            self.foot()
        else:
            self.passed = False
            say(f"-- {text}")

    def head(self) -> None:
        """The bar, on an empty screen where there is one (what scrolled off stays)."""
        if self.typed.heard and not out.is_dumb_terminal:
            out.clear()
        line = bar(self.lab, all_progress(), out.width, out.encoding.startswith("utf"))
        out.print(line, style="bold green" if line[0] in "✓+" else "bold", markup=False)
        say()
        sys.stdout.flush()  # before another process writes

    def reward(self) -> None:
        """What the lab unlocked; once, where the engine has a place for its code, what the model says with it."""
        labs = all_progress()
        if new := [lab for lab in ready(labs) if self.name in lab.prerequisites]:
            say(f"Unlocked: {', '.join(lab.name for lab in new)}")
        if (following := next_lab(labs)) and following not in new:
            say(f"Next: {following.name}")
        if self.name in PAYOFFS and not self.rewarded:
            sys.stdout.flush()
            command = [sys.executable, "-m", "course.plugs.payoff", self.name]
            subprocess.run(command, cwd=ROOT, stdin=DEVNULL, check=False)
        self.rewarded = True

    def foot(self) -> None:
        """The keys."""
        if self.typed.heard:
            first = "n next" if self.passed else "save to run"
            out.print(f"\n{first} · h hint · d diff · c check all · q quit", style="dim")
        else:
            say(f"waiting for {self.lab.phase}/labs/{self.lab.slug}/starter.py to be saved; Ctrl-C ends")

    def idle(self, seconds: float) -> bool:
        """Waits for a key and does what it asks for; whether to leave this lab."""
        key = self.typed.get(seconds)
        if key == "q" or (key == "n" and self.passed and not self.running):
            labs = all_progress()
            self.following = next_lab(labs) if key == "n" else None
            if not self.following:
                say(f"{sum(p.done for p in labs)} of {len(labs)} labs done. To go on: course watch")
            return True
        if key == REDRAW:
            self.foot()
        elif key in ("n", "h", "d", "c") and not self.running:
            if not out.is_dumb_terminal:
                out.control(Control((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)))  # the keys
            with suppress(typer.Exit, KeyboardInterrupt):
                self.act(key)
            self.foot()
        return False

    def act(self, key: str) -> None:
        """One key."""
        try:
            if key == "n":
                say(f"{self.name} is red still; course watch NN-MM takes another lab")
            elif key == "h":
                learner.hint(self.name)
            elif key == "d":
                self.typed.stop()  # for a pager
                learner.diff(self.name)
            else:
                check_all()
        except LabError as error:
            say(str(error))
        finally:
            self.typed.start()


def check_all() -> None:
    """Runs the tests of every lab that is begun: a line each."""
    begun = [p.lab for p in all_progress() if p.state not in ("not started", "skipped")]
    say(f"checking {', '.join(lab.number for lab in begun) or 'nothing: no lab is begun'}")
    if begun:
        paths = [str(lab.folder) for lab in begun]
        learner.run_tests(paths, "-q", "--tb=no", "--disable-warnings", stdin=DEVNULL)


def run(lab: Lab) -> None:
    """Watches a lab, then the one that n asks for, and so on. Without keys it ends when the lab passes."""
    following: Lab | None = lab
    with keys() as typed, suppress(KeyboardInterrupt):
        while following:
            watch.check(following.folder)
            screen, saves = Screen(following, typed), watch.Saves(following.folder)
            begun = lab_progress(following.folder, recall(ROOT)).state != "not started"
            if not begun:  # no red tests yet, but something to read
                screen.head()
                learner.say_task(following, 4)
            passed = watch.watch(saves, screen.note, idle=screen.idle, stay=typed.heard, now=begun)
            following = screen.following
        if passed and not typed.heard:
            say(f"Compare with the reference: course diff {screen.name}; then: course watch")
