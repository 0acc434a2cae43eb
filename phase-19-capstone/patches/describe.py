"""Checks the description of a change to vLLM against what its contributing guide asks.

    python phase-19-capstone/patches/describe.py FILE... [--ready]

`upstream/docs/contributing/README.md` and `upstream/AGENTS.md` say what that is, and
`upstream/.github/PULL_REQUEST_TEMPLATE.md` gives the three sections.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PREFIXES = ("Bugfix", "CI/Build", "Doc", "Model", "Frontend", "Kernel", "Core", "Hardware", "Misc")
SECTIONS = ("Purpose", "Test Plan", "Test Result")
PLACEHOLDER = re.compile(r"your|name here|example\.(?:com|org)|<>", re.IGNORECASE)
MIN_WORDS = {"Purpose": 25, "Test Plan": 3, "Test Result": 6}


def sections_of(text: str) -> dict[str, str]:
    """The text below each heading of the second level, by heading, in order. Headings inside of fences are none."""
    found: dict[str, str] = {}
    current, fenced = "", False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        heading = re.match(r"## +(.+?)\s*$", line)
        if heading and not fenced:
            current = heading[1]
            found[current] = ""
        elif current:
            found[current] += line + "\n"
    return found


def test_ids(text: str) -> list[str]:
    """The tests that the Test Plan runs: what its `pytest` commands name below `tests/`."""
    plan = sections_of(text).get("Test Plan", "")
    commands = [line for line in plan.replace("\\\n", " ").splitlines() if "pytest" in line]
    return [word for line in commands for word in line.split() if word.startswith("tests/")]


def lint(text: str, ready: bool = False) -> list[str]:
    """What a description lacks, in words; empty where it lacks nothing.

    ready: it is about to be sent, so that it must be signed with a name, and the change must be nobody else's already.
    """
    sections = sections_of(text)
    problems = [*_title(text), *_sections(sections), *_statements(text, ready)]
    if "Test Plan" in sections and not test_ids(text):
        problems.append("Test Plan: no pytest command that names a file below tests/")
    result = sections.get("Test Result", "")
    if result.strip() and not ("failed" in result and "passed" in result):
        problems.append("Test Result: shows no test that failed before and passed after")
    if "PLEASE FILL IN" in text or re.search(r"^- \[ \]", text, re.MULTILINE):
        problems.append("words of the empty template are left in")
    return problems


def _title(text: str) -> list[str]:
    title = re.match(r"# (.*)", text)
    if title is None:
        return ["no title: the first line must be '# [Bugfix] …'"]
    found = re.match(r"((?:\[[^\]]+\] ?)+)(\S.*)?$", title[1])
    if found is None or not found[2]:
        return [f"title {title[1]!r}: must be one or more prefixes, as in [Bugfix][Core], and what changes"]
    prefixes = re.findall(r"\[([^\]]+)\]", found[1])
    if prefixes[0] not in PREFIXES:
        return [f"title: [{prefixes[0]}] is none of {', '.join(f'[{name}]' for name in PREFIXES)}"]
    return []


def _sections(sections: dict[str, str]) -> list[str]:
    problems = [f"no section '## {name}'" for name in SECTIONS if name not in sections]
    order = [name for name in sections if name in SECTIONS]
    if not problems and order != list(SECTIONS):
        problems.append(f"sections stand in the order {', '.join(order)}; the template's is {', '.join(SECTIONS)}")
    for name, words in MIN_WORDS.items():
        if name in sections and len(sections[name].split()) < words:
            problems.append(f"{name}: {len(sections[name].split())} words; at least {words} are needed")
    return problems


def _statements(text: str, ready: bool) -> list[str]:
    problems = []
    duplicate = re.search(r"^\*\*Duplicate check[.:]\*\* *(.*(?:\n\S.*)*)", text, re.MULTILINE)
    if duplicate is None or len(duplicate[1].split()) < 8:
        problems.append("no line '**Duplicate check.**' that says what was searched and found")
    elif ready and re.search(r"\b(nothing is sent|is a duplicate)\b", duplicate[1]):
        problems.append("the duplicate check says that the change is there already: do not open another")
    assistance = re.search(r"^\*\*AI assistance[.:]\*\* *(.*)", text, re.MULTILINE)
    if assistance is None or len(assistance[1].split()) < 3:
        problems.append("no line '**AI assistance.**' that says whether and how a tool helped")
    signed = re.search(r"^Signed-off-by: (.+)$", text, re.MULTILINE)
    if signed is None:
        problems.append("no line 'Signed-off-by: ' (git commit -s)")
    elif ready and (PLACEHOLDER.search(signed[1]) or not re.search(r"\S+ \S.* ?<\S+@\S+\.\S+>", signed[1])):
        problems.append(f"Signed-off-by: {signed[1]!r} is no person with an address; the DCO asks who vouches for it")
    return problems


def main(arguments: list[str]) -> int:
    """Print the problems of each file; 1 where there is any."""
    ready = "--ready" in arguments
    failed = False
    for name in (argument for argument in arguments if argument != "--ready"):
        problems = lint(Path(name).read_text(encoding="utf-8"), ready)
        failed |= bool(problems)
        print(f"{name}: {'in order' if not problems else ''}", *(f"  {problem}" for problem in problems), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
