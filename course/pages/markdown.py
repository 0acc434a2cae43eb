"""Reads a page: its fences, its prose, its headings and links, each with the line where it stands.

Only what the checks need of GitHub's Markdown: fences, HTML comments, ATX headings, inline and reference links."""

import functools
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course.labs import edited_starters

FOLDERS = re.compile(r"phase-\d\d-|(?:mini_vllm|course|models|benchmarks|docs|site|examples)$")
SKIPPED = {"node_modules", "__pycache__", "site-packages"}
_OPEN = re.compile(r"^(?P<indent>\s*(?:>\s?)*)(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)$")
_COMMENT = re.compile(r"<!--(.*?)-->", re.S)
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_CODE = re.compile(r"(`+)(?!`)(.*?)(?<!`)\1(?!`)", re.S)
_LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s]*)*)>?(?:\s+[\"'(].*?)?\s*\)"
)
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)", re.M)


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place of the repository."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.as_posix()}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Fence:
    """``line`` is that of the first line inside, ``note`` the HTML comment that stands directly before the fence."""

    info: str
    line: int
    text: str
    note: str = ""

    @property
    def language(self) -> str:
        return self.info.split()[0].lower() if self.info.split() else ""


@dataclass
class Page:
    """A parsed page. ``prose`` is the text with fences and comments blanked out, line for line."""

    path: Path
    text: str
    fences: list[Fence] = field(default_factory=list)
    prose: str = ""

    def headings(self) -> Iterator[tuple[int, int, str]]:
        """(line, level, text) of every heading."""
        for number, line in enumerate(self.prose.splitlines(), 1):
            if match := _HEADING.match(line):
                yield number, len(match[1]), match[2]

    def anchors(self) -> set[str]:
        """``_anchors``, found once."""
        return self._anchors

    @functools.cached_property
    def _anchors(self) -> set[str]:
        """Targets of ``#...`` links: GitHub's slugs of the headings, and explicit ``id=`` or ``name=``."""
        found = set(re.findall(r"<[a-z]+[^>]*\b(?:id|name)=[\"']([^\"']+)", self.prose))
        for _, _, title in self.headings():
            base, again, n = slug(title), slug(title), 0
            while again in found:
                n += 1
                again = f"{base}-{n}"
            found.add(again)
        return found

    def links(self) -> Iterator[tuple[int, str]]:
        """(line, target) of every link and image outside code."""
        bare = _CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), self.prose)
        for pattern in (_LINK, _REFERENCE):
            for match in pattern.finditer(bare):
                yield self.line_of(match.start()), match[1]
        for match in re.finditer(r"<(?:img|a)\b[^>]*?\b(?:src|href)=[\"']([^\"']+)", bare):
            yield self.line_of(match.start()), match[1]

    def line_of(self, offset: int) -> int:
        """The line number of an offset into ``prose``."""
        return self.prose.count("\n", 0, offset) + 1

    def words(self) -> int:
        """Words outside fences and comments."""
        return len(self.prose.split())


def slug(title: str) -> str:
    """GitHub's anchor for a heading's text."""
    title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
    title = re.sub(r"<[^>]+>", "", title)
    kept = re.sub(r"[^\w\- ]", "", title.strip().lower())
    return kept.replace(" ", "-")


def parse(text: str, path: Path = Path("page.md")) -> Page:
    """Splits a page's text. An unclosed fence runs to the end, as on GitHub."""
    page, lines, prose = Page(path, text), text.splitlines(), []
    i = 0
    while i < len(lines):
        opened = _OPEN.match(lines[i])
        if opened is None:
            prose.append(lines[i])
            i += 1
            continue
        mark, body, start = opened["mark"], [], i + 1
        i += 1
        while i < len(lines) and not re.match(rf"^[\s>]*{mark[0]}{{{len(mark)},}}\s*$", lines[i]):
            body.append(re.sub(r"^(\s*>\s?)+", "", lines[i]) if ">" in opened["indent"] else lines[i])
            i += 1
        i += 1
        note = _COMMENT.fullmatch(prose[-1].strip()) if prose else None
        content = textwrap.dedent("\n".join(body)) if opened["indent"] else "\n".join(body)
        page.fences.append(Fence(opened["info"].strip(), start + 1, content, note[1].strip() if note else ""))
        prose.extend([""] * (min(i, len(lines)) - start + 1))
    page.prose = _COMMENT.sub(lambda m: "\n" * m[0].count("\n"), "\n".join(prose))
    return page


@functools.lru_cache(maxsize=512)
def _cached(path: Path, mtime_ns: int, size: int) -> Page:
    return parse(path.read_text(encoding="utf-8"), path)


def read(path: Path) -> Page:
    """Parses a file; unchanged files are parsed once."""
    stat = path.stat()
    return _cached(path, stat.st_mtime_ns, stat.st_size)


def files(root: Path, suffix: str) -> list[Path]:
    """The course's own files with a suffix: those at the top and in its folders; not the pinned tree, a workspace, an
    environment, a cache, or what a learner keeps beside them. A ``starter.py`` that holds her work is hers too."""
    found = []
    edited = edited_starters(root)
    for folder, names, contents in os.walk(root):
        top = Path(folder) == root
        names[:] = sorted(n for n in names if n not in SKIPPED and n[0] != "." and (not top or FOLDERS.match(n)))
        found += [Path(folder) / name for name in sorted(contents) if name.endswith(suffix)]
    return [path for path in found if path not in edited]
