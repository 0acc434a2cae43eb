"""Lab 19-01: twelve threads of vLLM's tracker go through a gauntlet, and one comes out as a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

VERDICTS = ("claimed", "duplicate", "absent", "out of reach", "undecided", "take")
"""What may become of a thread, in the order in which it is cheap to find out."""

FIELDS = ("Issue", "Reproduced at", "Cause", "Fix", "Test plan", "Blast radius", "Out of scope", "Open questions")
"""The headings of a plan, `## FIELD`, in this order."""

DATA = (".json", ".yaml", ".yml", ".toml", ".txt", ".csv")
"""Endings of data and configuration, which do not count as code."""


@dataclass(frozen=True)
class Thread:
    """What stands in the tracker. Given. `pulls`: number and state ("open", "closed", "merged") of the changes that
    name it; `twin`: another thread, still open, about the same fault."""

    number: int
    title: str
    state: str
    pulls: tuple[tuple[int, str], ...] = ()
    twin: int | None = None


@dataclass(frozen=True)
class Finding:
    """What you found in the pinned tree about one thread. Given.

    Attributes:
        number: the thread. path, line, text: a place in the tree, `text` being a piece of that line: where the fault
            is, or what shows that it is not there. there: whether the fault is in the pinned tree. hardware: whether
            it takes more than a CPU to see it. settled: whether it is plain what the right behaviour is, so that
            nobody has to decide that first.
    """

    number: int
    path: str
    line: int
    text: str
    there: bool
    hardware: bool = False
    settled: bool = True


def findings() -> list[Finding]:
    """Your findings about the threads of `threads.json`, one for each. The paths begin with `vllm/`."""
    raise NotImplementedError("one finding for each thread, with a line of the pinned tree that shows it")


def check_findings(found: Sequence[Finding], threads: Sequence[Thread], read: Callable[[str], str | None]) -> list[str]:
    """What is wrong with the findings, in words; nothing where all is right.

    Args:
        found: in any order. threads: what there should be findings about. read: the text of a file of the tree, None
            where there is no such file.

    Returns:
        In the order of the threads: "#N: no finding", "#N: C findings"; for a thread with one finding the first that
        applies of "#N: there is no PATH", "#N: PATH has L lines, no line K", "#N: line K of PATH reads 'LINE', without
        'TEXT'" (LINE without blanks around it), "#N: 'TEXT' says too little" where TEXT has fewer than 10 characters,
        blanks around it not counted. Then, in the order of `found`: "#N: no such thread".
    """
    raise NotImplementedError("what is wrong with the findings, thread by thread")


def verdict(thread: Thread, finding: Finding) -> str:
    """What becomes of a thread: the first of `VERDICTS` that applies.

    "claimed" where a change for it is open or merged; a change that was closed claims nothing, and neither does the
    state of the thread itself. "duplicate" where it has a twin. "absent" where the fault is not in the tree. "out of
    reach" where it takes hardware. "undecided" where somebody has to decide first what is right. Else "take".
    """
    raise NotImplementedError("the first of VERDICTS that applies to the thread")


def predicted_closed_but_there() -> int:
    """Your prediction, made before you open a file: four of the twelve threads are closed. Of how many of these four is
    the fault, or what they complain about, in the pinned tree?
    """
    raise NotImplementedError("your prediction: how many of the four closed threads have their fault in the tree")


def owners(codeowners: str, path: str) -> list[str]:
    """Who is asked to review a change of `path`, by the text of `.github/CODEOWNERS`.

    A line is a pattern and its owners; the *last* line whose pattern fits counts, alone, also if it names nobody. What
    follows a `#` is a comment. A pattern that begins with `/` is anchored at the root, another one fits at any depth.
    It fits a file, or a folder and all that is in it; with a `/` at its end only a folder. `*` stands for anything but
    a `/`, `**` for that too. A pattern that ends in `/*` fits the files of that folder and nothing deeper.
    """
    raise NotImplementedError("who reviews a change of the path, by the last line that fits")


@dataclass(frozen=True)
class Scope:
    """How large a change is. Given. `code`: lines added and removed that count; `owners`: each once, in the order of
    the alphabet; `fits`: whether it is small enough for a first contribution, and has a test."""

    files: int
    code: int
    tests: tuple[str, ...]
    owners: tuple[str, ...]
    needs_rfc: bool
    fits: bool


def scope(numstat: str, codeowners: str) -> Scope:
    """The size of a change, from what `git diff --numstat` prints: lines of "ADDED<tab>REMOVED<tab>PATH".

    The pinned contributing guide counts lines of code "excluding kernel/data/config/test". Here: what stands below
    `tests/` or `csrc/` or ends as `DATA` says does not count, nor does a binary file ("-" for both numbers). More than
    500 lines that count need an RFC first. A change fits where at most 100 lines count and a file below `tests/` is
    changed.
    """
    raise NotImplementedError("how large the change is, whom it asks, and whether it fits")


def lint_plan(plan: str) -> list[str]:
    """What a reviewer would send back, in this order; nothing for a good plan.

    "FIELD is missing" for a heading of `FIELDS` that is not there, "FIELD is empty" for one with nothing below, in the
    order of `FIELDS`; "Cause names no file and line", for a cause without `PATH.py:N`; "Open questions has N questions,
    of two" for more than two question marks; "N lines, of 60" for a longer plan, counting lines that are not blank.
    """
    raise NotImplementedError("what a reviewer would send back, in the order of the docstring")


def tally(verdicts: Iterable[str]) -> dict[str, int]:
    """How many threads fell to each of `VERDICTS`, in that order, those that nobody fell to among them. Given."""
    counted = list(verdicts)
    return {name: counted.count(name) for name in VERDICTS}
