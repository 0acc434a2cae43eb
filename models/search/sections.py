"""Cuts the course's pages into sections: what a search answers with, and what the embedding model was trained on.

A section is what stands under one heading, as plain text: no code, no links, no tables' rules. Headings that say
nothing of their content ("Run", "Files", "Contents") are passed over; in a lab's README so are the sections that
every lab has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("phase-*/*.md", "phase-*/labs/*.md", "phase-*/labs/*/README.md", "docs/*.md", "*.md")
NO_ANSWER = ("EXERCISES.md", "CHEATSHEET.md", "02-mini-build.md")
"""Pages that ask, sum up, or tell what to type; they are not searched. pocket-embed learned from them, too."""
NO_PLACE = {
    "contents", "run", "files", "references", "hints", "checklist", "reading checklist", "what to do now",
    "what you do now", "now do it", "going further", "what to implement", "what the tests prove", "rapid fire",
}  # fmt: skip
_HEADING = re.compile(r"^(#{1,4})\s+(.*?)\s*#*$")
_NUMBER = re.compile(r"^(?:\d+(?:\.\d+)*\.?|\([a-z]\))\s+")
_CAMEL = re.compile(r"(?<=[a-z]{3})(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_MARKS = (
    (re.compile(r"<!--.*?-->", re.S), " "),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), " "),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"`?upstream/[\w/.\-]+(?::[\d\-]+)?`?"), " "),
    (re.compile(r"<[^>\n]+>"), " "),
    (re.compile(r"https?://\S+"), " "),
    (re.compile(r"^\s*\|?[\s:|\-]+\|\s*$", re.M), " "),
    (re.compile(r"[*`|#>~]+"), " "),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Section:
    """One place of the course.

    Attributes:
        file: as from the repository's root. line: of the heading, from 1.
        title: the heading without its number. page: the first heading of the file. text: plain, may be long.
    """

    file: str
    line: int
    title: str
    page: str
    text: str

    @property
    def key(self) -> str:
        """`file#anchor`, which stays when lines move."""
        return f"{self.file}#{anchor(self.title)}"


def anchor(title: str) -> str:
    """A heading as a short name: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def plain(text: str) -> str:
    """Markdown without its marks: what a reader sees."""
    for pattern, instead in _MARKS:
        text = pattern.sub(instead, text)
    return text.strip()


def spaced(text: str) -> str:
    """Names of code in words: `KVCacheManager` is `KV Cache Manager`, but GPUs, vLLM and LoRA stay whole."""
    return _CAMEL.sub(" ", text).replace("_", " ")


def sections_of(file: str, text: str) -> Iterator[Section]:
    """The sections of one page, in order."""
    page, title, line, body, fenced = "", "", 0, [], False
    for number, row in enumerate([*text.splitlines(), "# "], 1):
        fenced ^= row.lstrip().startswith(("```", "~~~"))
        match = None if fenced else _HEADING.match(row)
        if match is None:
            if not fenced and not row.startswith("```"):
                body.append(row)
            continue
        if title and _is_place(title):
            content = plain("\n".join(body))
            if len(content) > 80:
                yield Section(file, line, title, page, content)
        title, line, body = _NUMBER.sub("", plain(match[2])).strip('" '), number, []
        page = page or title
        if len(match[1]) > 1 and line == 1:
            page = title


def _is_place(title: str) -> bool:
    return title.lower().strip(" .") not in NO_PLACE


def course_files(root: Path) -> list[str]:
    """The pages that are searched, as from `root`, sorted."""
    found: set[str] = {str(path.relative_to(root)) for pattern in FOLDERS for path in root.glob(pattern)}
    return sorted(found - {"NOTICE.md", "PUBLISHING.md"})


def pages_to_search(root: Path) -> list[str]:
    """Those of them that explain."""
    return [name for name in course_files(root) if not name.endswith(NO_ANSWER)]


def read_sections(root: Path, files: Iterable[str] | None = None) -> list[Section]:
    """All sections of the course at `root`, or of these files."""
    names = course_files(root) if files is None else files
    return [s for name in names for s in sections_of(name, (root / name).read_text(encoding="utf-8"))]
