"""Lab 19-01: twelve threads of vLLM's tracker go through a gauntlet, and one comes out as a plan."""

from __future__ import annotations

import re
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
    core, serving = "vllm/v1/core", "vllm/entrypoints"
    return [
        Finding(49097, f"{core}/sched/scheduler.py", 479, "req_index -= 1", True),
        Finding(32557, "vllm/sampling_params.py", 606, "len(prompt_token_ids) == len(self._bad_words", True),
        Finding(23886, "vllm/sampling_params.py", 606, "len(prompt_token_ids) == len(self._bad_words", True),
        Finding(28806, "vllm/tool_parsers/hermes_tool_parser.py", 196, "if args is None or len(args) <=", False),
        Finding(
            47901, "vllm/tool_parsers/xlam_tool_parser.py", 411, "re.search(empty_args_pattern, search_text)", True
        ),
        Finding(32588, f"{serving}/speech_to_text/base/serving.py", 555, "float(idx * chunk_size_in_s)", True),
        Finding(53066, "vllm/v1/engine/detokenizer.py", 131, "stop = check_stop_strings(", True, settled=False),
        Finding(9342, "vllm/engine/llm_engine.py", 6, "LLMEngine = V1LLMEngine", False),
        Finding(23347, f"{core}/sched/scheduler.py", 464, "scheduled_running_reqs.remove(preempted_req)", False),
        Finding(24504, f"{serving}/openai/completion/serving.py", 333, "assert request.max_tokens is not None", True),
        Finding(41838, f"{core}/kv_cache_manager.py", 425, "self.coordinator.cache_blocks(", True, hardware=True),
        Finding(41951, "vllm/v1/request.py", 308, "self.arrival_time != other.arrival_time", True, settled=False),
    ]


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
    wrong = []
    for thread in threads:
        mine = [each for each in found if each.number == thread.number]
        if len(mine) != 1:
            wrong.append(f"#{thread.number}: {len(mine) or 'no'} finding{'s' if len(mine) > 1 else ''}")
        elif problem := _look(mine[0], read):
            wrong.append(f"#{thread.number}: {problem}")
    known = {thread.number for thread in threads}
    return wrong + [f"#{each.number}: no such thread" for each in found if each.number not in known]


def _look(finding: Finding, read: Callable[[str], str | None]) -> str | None:
    text = read(finding.path)
    if text is None:
        return f"there is no {finding.path}"
    lines = text.splitlines()
    if not 1 <= finding.line <= len(lines):
        return f"{finding.path} has {len(lines)} lines, no line {finding.line}"
    line = lines[finding.line - 1]
    if finding.text not in line:
        return f"line {finding.line} of {finding.path} reads {line.strip()!r}, without {finding.text!r}"
    return f"{finding.text!r} says too little" if len(finding.text.strip()) < 10 else None


def verdict(thread: Thread, finding: Finding) -> str:
    """What becomes of a thread: the first of `VERDICTS` that applies.

    "claimed" where a change for it is open or merged; a change that was closed claims nothing, and neither does the
    state of the thread itself. "duplicate" where it has a twin. "absent" where the fault is not in the tree. "out of
    reach" where it takes hardware. "undecided" where somebody has to decide first what is right. Else "take".
    """
    falls = {
        "claimed": any(state in ("open", "merged") for _, state in thread.pulls),
        "duplicate": thread.twin is not None,
        "absent": not finding.there,
        "out of reach": finding.hardware,
        "undecided": not finding.settled,
    }
    return next((name for name, applies in falls.items() if applies), "take")


def predicted_closed_but_there() -> int:
    """Your prediction, made before you open a file: four of the twelve threads are closed. Of how many of these four is
    the fault, or what they complain about, in the pinned tree?
    """
    return 3


def owners(codeowners: str, path: str) -> list[str]:
    """Who is asked to review a change of `path`, by the text of `.github/CODEOWNERS`.

    A line is a pattern and its owners; the *last* line whose pattern fits counts, alone, also if it names nobody. What
    follows a `#` is a comment. A pattern that begins with `/` is anchored at the root, another one fits at any depth.
    It fits a file, or a folder and all that is in it; with a `/` at its end only a folder. `*` stands for anything but
    a `/`, `**` for that too. A pattern that ends in `/*` fits the files of that folder and nothing deeper.
    """
    found: list[str] = []
    for line in codeowners.splitlines():
        words = line.partition("#")[0].split()
        if words and re.fullmatch(_pattern(words[0]), path):
            found = words[1:]
    return found


def _pattern(glob: str) -> str:
    inside = "" if glob.endswith("/*") else "/.+" if glob.endswith("/") else "(?:/.+)?"
    pieces = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    parts = re.split(r"(\*\*/|\*\*|\*)", glob.strip("/"))
    body = "".join(pieces.get(part, re.escape(part)) for part in parts)
    return ("" if glob.startswith("/") else "(?:.*/)?") + body + inside


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
    rows = [line.split("\t") for line in numstat.splitlines() if line]
    paths = [path for _, _, path in rows]
    tests = tuple(path for path in paths if path.startswith("tests/"))
    code = sum(int(added) + int(removed) for added, removed, path in rows if added != "-" and _counts(path))
    asked = sorted({owner for path in paths for owner in owners(codeowners, path)})
    return Scope(len(rows), code, tests, tuple(asked), code > 500, code <= 100 and bool(tests))


def _counts(path: str) -> bool:
    return not path.startswith(("tests/", "csrc/")) and not path.endswith(DATA)


def lint_plan(plan: str) -> list[str]:
    """What a reviewer would send back, in this order; nothing for a good plan.

    "FIELD is missing" for a heading of `FIELDS` that is not there, "FIELD is empty" for one with nothing below, in the
    order of `FIELDS`; "Cause names no file and line", for a cause without `PATH.py:N`; "Open questions has N questions,
    of two" for more than two question marks; "N lines, of 60" for a longer plan, counting lines that are not blank.
    """
    parts = re.split(r"(?m)^## +(.+?) *$", plan)
    body = {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    wrong = [f"{name} is {'empty' if name in body else 'missing'}" for name in FIELDS if not body.get(name)]
    if body.get("Cause") and not re.search(r"\w\.py:\d", body["Cause"]):
        wrong.append("Cause names no file and line")
    if (count := body.get("Open questions", "").count("?")) > 2:
        wrong.append(f"Open questions has {count} questions, of two")
    lines = sum(1 for line in plan.splitlines() if line.strip())
    return wrong + ([f"{lines} lines, of 60"] if lines > 60 else [])


def tally(verdicts: Iterable[str]) -> dict[str, int]:
    """How many threads fell to each of `VERDICTS`, in that order, those that nobody fell to among them. Given."""
    counted = list(verdicts)
    return {name: counted.count(name) for name in VERDICTS}
