"""`course hint`: the folded hints of a lab's README, one more each time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from course.labs import ROOT, Lab, LabError
from course.loop.record import recall, remember

_SECTION = re.compile(r"^## Hints\s*$(.*?)(?=^## |\Z)", re.M | re.S)
_FOLDED = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.S)
_MARKS = re.compile(r"^Hint \d+\s*[:.]\s*|</?\w+>")


@dataclass(frozen=True)
class Hint:
    """``text`` is Markdown."""

    title: str
    text: str


def read_hints(readme: Path) -> list[Hint]:
    """The hints of a README, in order. Raises :class:`LabError` where it has none."""
    section = _SECTION.search(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    folded = _FOLDED.findall(section[1] if section else "")
    found = [Hint(_MARKS.sub("", title).strip(), body.strip()) for title, body in folded]
    if not found:
        raise LabError(f"{readme.parent.name}/README.md has no hints")
    return found


def next_hints(lab: Lab, again: bool = False, root: Path = ROOT) -> tuple[list[tuple[int, Hint]], int]:
    """(hints to show, with numbers, how many there are): the next one, which is noted; ``again``: those shown."""
    hints = list(enumerate(read_hints(root / lab.phase / "labs" / lab.slug / "README.md"), 1))
    seen = recall("hints", root).get(lab.key, 0)
    seen = min(seen, len(hints)) if isinstance(seen, int) else 0
    if again:
        return hints[:seen], len(hints)
    if seen < len(hints):
        remember("hints", lab.key, seen + 1, root)
    return hints[seen : seen + 1], len(hints)
