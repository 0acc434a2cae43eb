"""`course hint`: the folded hints of a lab's README, those of the first red test first, one more each time.

A hint names its tests in a comment that no page shows: ``<!-- hint: test_a, test_b -->``."""

import re
from dataclasses import dataclass
from pathlib import Path

from course.labs import ROOT, Lab, LabError
from course.loop import outcomes
from course.loop.record import recall, remember

_SECTION = re.compile(r"^## Hints\s*$(.*?)(?=^## |\Z)", re.M | re.S)
_FOLDED = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.S)
_TESTS = re.compile(r"\s*<!--\s*hint:\s*(.*?)\s*-->", re.S)
_MARKS = re.compile(r"^Hint \d+\s*[:.]\s*|</?\w+>")


@dataclass(frozen=True)
class Hint:
    """``text`` is Markdown, ``tests`` are those that it helps with."""

    title: str
    text: str
    tests: tuple[str, ...] = ()


def read_hints(readme: Path) -> list[Hint]:
    """The hints of a README, in order. Raises :class:`LabError` where it has none."""
    section = _SECTION.search(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    folded = _FOLDED.findall(section[1] if section else "")
    found = []
    for title, body in folded:
        tests = tuple(re.findall(r"\w+", " ".join(_TESTS.findall(body))))
        found.append(Hint(_MARKS.sub("", title).strip(), _TESTS.sub("", body).strip(), tests))
    if not found:
        raise LabError(f"{readme.parent.name}/README.md has no hints")
    return found


def red_tests(lab: Lab, root: Path = ROOT) -> list[str]:
    """What was red when the lab was run last: what she has written first, then what waits for her."""
    row = outcomes.recall(root).get(lab.key, {})
    return [*row.get("red", []), *row.get("open", [])]


def next_hints(lab: Lab, again: bool = False, root: Path = ROOT) -> tuple[list[tuple[int, Hint]], int]:
    """(hints to show, with numbers, how many there are): the next one, which is noted: of the first red test that has
    one left, else the next of all; ``again``: those shown."""
    hints = list(enumerate(read_hints(root / lab.phase / "labs" / lab.slug / "README.md"), 1))
    noted = recall("hints", root).get(lab.key)
    seen = noted if isinstance(noted, list) else []
    fresh = [(n, hint) for n, hint in hints if n not in seen]
    if again or not fresh:
        return ([(n, hint) for n, hint in hints if n in seen] if again else []), len(hints)
    first = next((row for test in red_tests(lab, root) for row in fresh if test in row[1].tests), fresh[0])
    remember("hints", lab.key, [*seen, first[0]], root)
    return [first], len(hints)
