"""The screen of `course watch`: its keys, on fakes and on a real pseudo-terminal, what it says, and the reward."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from course import labs
from course.labs import ROOT, find_labs, lab_folders, lab_of
from course.loop import keys, learner, outcomes, screen
from course.loop.progress import LabProgress, all_progress, ready
from course.plugs import payoff
from course.tests.conftest import FIRST, SOLUTION, STARTER
from course.tests.test_plugs import wrong  # noqa: F401

pytestmark = pytest.mark.maintainer

if sys.platform != "win32":
    import pty
    import termios


class FakeConsole:
    """What `msvcrt` has: keys that wait, one after the other."""

    def __init__(self, typed: str) -> None:
        self.typed = list(typed)

    def kbhit(self) -> bool:
        return bool(self.typed)

    def getwch(self) -> str:
        return self.typed.pop(0)


def test_keys_of_a_windows_console() -> None:
    console = keys.WindowsKeys(FakeConsole("N\xe0Hh\x00;\x04"))
    with console as typed:
        assert [typed.get(0.0) for _ in range(6)] == ["n", "", "h", "", "q", ""]
    with pytest.raises(KeyboardInterrupt):
        keys.WindowsKeys(FakeConsole("\x03")).get(1.0)


def test_in_a_pipe_nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    with keys.keys() as typed:  # pytest's own streams are no terminal
        assert not typed.heard and typed.get(0.0) == ""
    monkeypatch.setattr(sys, "stdin", None)
    assert not keys.keys().heard


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """(the learner's end, the program's end) of a pseudo-terminal."""
    if sys.platform == "win32":
        pytest.skip("POSIX")
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_keys_of_a_terminal_come_one_by_one(terminal: tuple[int, int]) -> None:
    hand, program = terminal
    before, handlers = termios.tcgetattr(program), signal.getsignal(signal.SIGTERM)
    with keys.PosixKeys(program) as typed:
        assert not termios.tcgetattr(program)[3] & (termios.ICANON | termios.ECHO)
        assert typed.get(0.0) == ""
        for sent, heard in ((b"n", "n"), (b"H", "h"), (b"\x1b[A", ""), (b"\x04", "q"), (b"nnn", "n")):
            os.write(hand, sent)
            assert typed.get(300.0) == heard
        assert typed.get(0.0) == "", "what was pasted behind a key is not taken for keys"
        typed.stop()
        assert termios.tcgetattr(program) == before
        typed.start()
    assert termios.tcgetattr(program) == before and signal.getsignal(signal.SIGTERM) == handlers


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError, SystemExit])
def test_the_terminal_is_restored_whatever_happens(terminal: tuple[int, int], end: type[BaseException]) -> None:
    before = termios.tcgetattr(terminal[1])
    with pytest.raises(end), keys.PosixKeys(terminal[1]):
        if end is SystemExit:
            signal.raise_signal(signal.SIGTERM)
        raise end
    assert termios.tcgetattr(terminal[1]) == before


def until_it_waits(pid: int) -> None:
    """Until a process that computes no more has gone to sleep; where there is no /proc, at once."""
    stat = Path(f"/proc/{pid}/stat")
    while stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)


@pytest.mark.slow
def test_a_suspended_watch_gives_the_terminal_back(terminal: tuple[int, int]) -> None:
    """Ctrl-Z, seen from the shell: its terminal is as it was, and after `fg` keys come one by one again."""
    code = "import sys\nfrom course.loop import keys\nwith keys.PosixKeys(int(sys.argv[1])) as typed:\n"
    code += "    print('ready', flush=True)\n    while (key := typed.get(600.0)) != 'q':\n"
    code += "        print(repr(key), flush=True)\n"
    before = termios.tcgetattr(terminal[1])
    command = [sys.executable, "-c", code, str(terminal[1])]
    # In a group of its own, as a shell starts it: in one that nobody watches over, the system ignores Ctrl-Z.
    made = subprocess.Popen(
        command, cwd=ROOT, pass_fds=terminal[1:], stdout=subprocess.PIPE, text=True, preexec_fn=os.setpgrp
    )
    with made as child, contextlib.ExitStack() as last:
        last.callback(child.kill)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        assert termios.tcgetattr(terminal[1]) != before
        for _ in range(2):
            until_it_waits(child.pid)
            child.send_signal(signal.SIGTSTP)
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
            assert termios.tcgetattr(terminal[1]) == before
            child.send_signal(signal.SIGCONT)
            assert child.stdout.readline() == f"{keys.REDRAW!r}\n", "it is told at once, also while it waits for a key"
            assert termios.tcgetattr(terminal[1]) != before
        os.write(terminal[0], b"q")
        assert child.wait(timeout=300) == 0
    assert termios.tcgetattr(terminal[1]) == before


def test_the_bar() -> None:
    rows = [LabProgress(lab, "done" if n < 1 else "not started", 0, 1) for n, lab in enumerate(find_labs("00"))]
    first, second = rows[0].lab, rows[1].lab
    assert screen.bar(first, rows, 80).startswith(f"✓ {first.name} · 1/{len(rows)} ▓▓")
    assert screen.bar(second, rows, 60, utf=False).startswith(f"> {second.name} - 1/{len(rows)} ##")
    longest = max((lab for folder in lab_folders() if (lab := lab_of(folder))), key=lambda lab: len(lab.name))
    for width in (60, 80, 200):
        assert len(screen.bar(longest, rows, width)) < width
    many = [LabProgress(first, "done", 0, 1), *[LabProgress(second, "not started", 0, 1)] * 99]
    assert screen.bar(first, many, 60).count("▓") == 1, "the first lab is to be seen"


def test_what_a_lab_unlocks() -> None:
    rows = [LabProgress(lab, "not started", 0, 1) for folder in lab_folders() if (lab := lab_of(folder))]
    done = [LabProgress(p.lab, "done" if p.lab.number == "00-01" else p.state, 0, 1) for p in rows]
    new = [lab.number for lab in ready(done) if "00-01" in lab.prerequisites]
    assert "00-02" in new and "00-04" not in new, "00-04 waits for 00-02 as well"
    assert not [lab for lab in ready(rows) if "00-01" in lab.prerequisites]


class Script(keys.Keys):
    """A learner: each line of the script is a key, or something that she does; at its end she leaves."""

    heard = True

    def __init__(self, *script: str | Callable[[], object]) -> None:
        self.script, self.on = list(script), False

    def start(self) -> None:
        self.on = True

    def stop(self) -> None:
        self.on = False

    def get(self, seconds: float) -> str:
        time.sleep(seconds)
        step = self.script.pop(0) if self.script else "q"
        if isinstance(step, str):
            return step
        if step() is False:  # not yet
            self.script.insert(0, step)
        return ""


@pytest.fixture
def home(small_course: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small course as the place where the screen works; its console is a file of 80 columns."""
    for module in (labs, learner, screen):
        monkeypatch.setattr(module, "ROOT", small_course)
    monkeypatch.setattr(screen, "all_progress", lambda: all_progress(small_course))
    monkeypatch.setattr(learner, "hint", lambda name: learner.say(f"hint of {name}"))
    console = Console(width=80, file=(small_course / "screen.txt").open("w", encoding="utf-8"), highlight=False)
    for module in (learner, screen):
        monkeypatch.setattr(module, "out", console)
    return small_course


def shown(home: Path) -> str:
    learner.out.file.flush()
    return (home / "screen.txt").read_text(encoding="utf-8")


def watched(home: Path, monkeypatch: pytest.MonkeyPatch, typed: keys.Keys, folder: str = FIRST) -> str:
    monkeypatch.setattr(screen, "keys", lambda: typed)
    lab = lab_of(folder)
    assert lab is not None
    screen.run(lab)
    return shown(home)


def test_a_session(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    save = partial((home / FIRST / "starter.py").write_text, SOLUTION)
    green = lambda: "Unlocked" in shown(home)  # noqa: E731
    typed = Script("h", "n", save, green, lambda: "n next" in shown(home), "n", "q")
    text = watched(home, monkeypatch, typed)
    assert text.startswith("▸ 00-01 kv-cache-speedup · 0/2 ░"), "nothing is red before anything is written"
    assert "edit     phase-00-foundations/labs/lab-01-kv-cache-speedup/starter.py" in text
    assert "Counter.add: Refuse a negative step, then add it to n." in text and "hint of 00-01" in text
    assert "00-01 is red still" in text, "n goes on from what passes alone"
    before, _, after = text.partition("All pass, ")
    assert "✓ 00-01 kv-cache-speedup · 1/2 ▓" in before and "FAILURES" not in capfd.readouterr().out
    assert "Unlocked: 00-02 kv-memory-calculator\n" in after
    assert after.index("n next") < after.index("▸ 00-02 kv-memory-calculator · 1/2"), "it waits for n"
    assert text.rstrip().endswith("1 of 2 labs done. To go on: course watch") and not typed.on


def test_in_a_pipe_it_says_lines_and_ends_when_the_lab_passes(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / FIRST / "starter.py").write_text(SOLUTION)
    text = watched(home, monkeypatch, keys.Keys())
    assert "\x1b" not in text and "Compare with the reference: course diff 00-01; then: course watch" in text
    assert "00-02 kv-memory-calculator ·" not in text, "the next lab waits"


def test_keys_of_a_lab_that_passes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(learner, "diff", lambda name: calls.append(("diff", name)))
    monkeypatch.setattr(learner, "run_tests", lambda paths, *options, **how: calls.append((*paths, *options)))
    lab = lab_of(FIRST)
    assert lab is not None
    typed = Script("d", keys.REDRAW, "c", "x")
    made = screen.Screen(lab, typed)
    made.note("waiting")
    assert not any(made.idle(0.0) for _ in range(4)) and calls == [("diff", "00-01")]
    assert "checking nothing: no lab is begun" in shown(home) and shown(home).count("q quit") == 4
    (home / FIRST / "starter.py").write_text(SOLUTION)
    typed.script = ["c", "q"]
    assert not made.idle(0.0) and calls[-1][:2] == (str(home / FIRST), "-q")
    made.note("running")
    typed.script = ["d", "q"]
    assert not made.idle(0.0) and len(calls) == 2, "while tests run, only q counts"
    assert made.idle(0.0) and made.following is None


def test_the_engine_answers_once_for_a_lab_that_has_a_place_in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(screen.subprocess, "run", lambda command, **how: calls.append(command[1:]))
    assert set(screen.PAYOFFS) == {row["lab"] for row in plugs()["parts"]}
    lab = lab_of(FIRST)
    assert lab is not None
    monkeypatch.setitem(screen.PAYOFFS, "00-01", {})
    made = screen.Screen(lab, keys.Keys())
    for _ in range(2):
        made.note("all pass, 0.1 s after the save")
    assert calls == [["-m", "course.plugs.payoff", "00-01"]]


def plugs() -> dict:
    return labs.tomllib.loads((labs.COURSE / "plugs.toml").read_text(encoding="utf-8"))


def said_by(lab: str) -> tuple[bool, str]:
    console = Console(width=100, record=True, file=open(os.devnull, "w"), highlight=False)  # noqa: SIM115
    return payoff.payoff(lab, console, "solution"), console.export_text()


def test_the_learners_sampler_writes_the_story(wrong) -> None:  # noqa: F811
    good, text = said_by("00-03")
    assert good and "Your sampler wrote this:" in text and "fox" in text and "violin" in text
    count = re.search(r"(\d+) tokens, (\d+) calls of your code", text)
    assert count is not None and count[1] == count[2] and int(count[1]) > 20
    greedy = "CALLS = []\n\n\ndef sample(logits, *_):\n    CALLS.append(0)\n    if len(CALLS) > 30:\n"
    wrong("00-03", "def sample(", f"{greedy}        return 10**6\n    return int(logits.argmax())\n\n\ndef _sample(")
    good, other = said_by("00-03")
    told = [each.partition("violin.\n")[2] for each in (text, other)]
    assert told[1][:40] != told[0][:40], "another sampler, another story"
    assert not good and "outside the vocabulary" in other and "course milestone 00-03" in other


@pytest.mark.slow
def test_what_tests_say_breaks_between_words(small_course: Path, terminal: tuple[int, int]) -> None:
    hand, program = terminal
    longer = STARTER.replace("then add it to n.", "then add it to n, which is returned.")
    (small_course / FIRST / "starter.py").write_text(longer)
    env = {**os.environ, "LAB_IMPL": "starter", "COLUMNS": "50", "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    command = [sys.executable, "-m", "pytest", "-qq", "-p", "no:cacheprovider", FIRST]
    with subprocess.Popen(command, cwd=small_course, env=env, stdin=subprocess.DEVNULL, stdout=program) as child:
        text = ""
        while child.poll() is None or select.select([hand], [], [], 0)[0]:
            text += os.read(hand, 1 << 16).decode() if select.select([hand], [], [], 0.05)[0] else ""
    lines = text.replace("\r", "").splitlines()
    assert "not written yet: Counter.add," in lines and "    which is returned." in lines
    assert any(line.startswith("…/lab-01-kv-cache-speedup/starter.py:") for line in lines)
    assert not [line for line in lines if len(line) > 50 and not line.startswith("_")]


def test_a_dumb_terminal_has_its_own_width() -> None:
    env = {**os.environ, "TERM": "dumb", "COLUMNS": "60", "PYTHONPATH": str(ROOT)}
    code = "from course.loop.learner import out; print(out.width)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "60\n"


def test_lines_break_between_words() -> None:
    text = "short\n    a line of words, phase-00-foundations/labs/lab-01-kv-cache-speedup/starter.py:12\n\n  end"
    for width in (50, 60, 80):
        lines = outcomes.fitted(text, width).split("\n")
        assert max(map(len, lines)) <= width and lines[-2:] == ["", "  end"]
        assert all(line.startswith("    ") for line in lines[1:-2])
        assert sum("starter.py:12" in line for line in lines) == 1
    assert outcomes.fitted(text, 100) == text
    told = (
        "read     phase-00-foundations/labs/lab-01-kv-cache-speedup/README.md\ntest     course test 00-01, or on a save"
    )
    assert outcomes.fitted(told, 60).split("\n")[0] == "read     …/lab-01-kv-cache-speedup/README.md"
    assert outcomes.fitted(told, 36).split("\n")[-1] == "         save", "below what was begun"
