"""What becomes of every citation when the pin moves: the same place, another line, or a human's to mend.

Each citation is looked up in the pinned tree first and then followed into the other release: to the line that stands
for its own where the two files are aligned, or to the one place that answers to it. Nothing is guessed, and what is
said of the others is what `course verify` will say."""

import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from course.labs import ROOT
from course.pages import citations
from course.pages.citations import Citation
from course.pages.markdown import read
from course.upstream.pinned import PinnedFile, open_pinned

STANDS, MOVED, LEFT, WRONG = STATES = ("stands", "moved", "left", "wrong now")


@dataclass(frozen=True)
class Fate:
    """A citation of ``page`` and what becomes of it. ``first`` and ``last`` are the new lines where it stands or has
    moved; ``note`` says what is known of the others."""

    page: Path
    citation: Citation
    state: str
    first: int = 0
    last: int = 0
    note: str = ""

    @property
    def place(self) -> str:
        return self.citation.path + _lines(self.citation.first, self.citation.last)

    @property
    def new_lines(self) -> str:
        return _lines(self.first, self.last)

    @property
    def what(self) -> str:
        """What is said to stand there, as the page writes it."""
        forms = {"symbol": "`{}`", "calls": "calls `{}`", "quote": '"{}"'}
        return forms.get(self.citation.kind, self.citation.kind).format(self.citation.what)


def _lines(first: int, last: int) -> str:
    return "" if not first else f":{first}" if last == first else f":{first}-{last}"


def all_citations(path: Path) -> Iterator[Citation]:
    """What a file says about the pinned tree; kinds ``excerpt`` and ``file`` besides :class:`Citation`'s."""
    if path.suffix != ".md":
        yield from citations.in_code(path.read_text(encoding="utf-8"))
        return
    page = read(path)
    yield from citations.in_prose(page).citations
    for fence in page.fences:
        if not fence.note.startswith("upstream:"):
            yield from citations.in_code(fence.text, fence.line - 1)
        elif match := citations.EXCERPT.fullmatch(fence.note):
            first = int(match["first"])
            last = int(match["last"] or first)
            yield Citation(fence.line - 2, f"upstream/{match['path']}", first, last, "excerpt", fence.text)
    for match in citations.FILE.finditer(page.prose):
        if not re.search(r"[*<>{}…]|NN|\.\.\.", match[1]):
            yield Citation(page.line_of(match.start()), match[1], 0, 0, "file")


def fates(old: Path, new: Path, root: Path = ROOT) -> list[Fate]:
    """The fate of every citation of the course, page by page."""
    return [
        replace(fate(citation, old, new), page=path)
        for path in citations.citing_files(root)
        for citation in all_citations(path)
    ]


def fate(citation: Citation, old: Path, new: Path) -> Fate:
    """Follows one citation from the tree ``old`` into the tree ``new``."""
    made = functools.partial(Fate, Path(), citation)
    if wrong := _wrong(citation, old):
        return made(WRONG, note=f"{wrong}; run `course verify`")
    if citation.kind == "file":
        why = _wrong(citation, new)
        return made(LEFT if why else STANDS, note=why)
    relative = citation.path.removeprefix("upstream/")
    before, after = open_pinned(old / relative), open_pinned(new / relative)
    if before is not None and after is not None:
        for first in _places(citation, before, after):
            last = _last(citation, first, before, after)
            if not _wrong(replace(citation, first=first, last=last), new):
                same = (first, last) == (citation.first, citation.last)
                return made(STANDS if same else MOVED, first, last)
    return made(LEFT, note=_wrong(citation, new) or "something answers to it there; look whether it is the same thing")


def _wrong(citation: Citation, tree: Path) -> str:
    """Why a citation does not hold in a tree; "" where it does."""
    path = tree / citation.path.removeprefix("upstream/").rstrip("/")
    if citation.kind == "file":
        return "" if path.exists() else "it is not there"
    if citation.kind != "excerpt":
        return (citations.check_citation(citation, tree) or "").removeprefix(f"{citation.path}:{citation.first}: ")
    file = open_pinned(path)
    return "it is not there" if file is None else file.differs(citation.first, citation.last, citation.what) or ""


def _places(citation: Citation, before: PinnedFile, after: PinnedFile) -> Iterator[int]:
    """New first lines, the likeliest first: the aligned one, then the only one of the full name, or of the text."""
    if aligned := _aligned(before.path, after.path).get(citation.first):
        yield aligned
    name = PinnedFile.name(citation.what) or ""
    if citation.kind in ("symbol", "bare"):
        full = [".".join(each) for each in before.defined_on(citation.first)]
        found = after.definitions(next((each for each in full if each.endswith(name)), name))
    elif citation.kind == "calls":
        found = after.call_lines(name)
    else:
        words = " ".join(before.lines[citation.first - 1].split())
        found = [n for n, line in enumerate(after.lines, 1) if words and " ".join(line.split()) == words]
    if len(found) == 1:
        yield found[0]


def _last(citation: Citation, first: int, before: PinnedFile, after: PinnedFile) -> int:
    """The new last line: the aligned one, the new end of a definition cited to its end, or as far on as before."""
    if citation.last == citation.first:
        return first
    if citation.kind == "symbol" and before.is_python:
        name = PinnedFile.name(citation.what) or ""
        if before.defines(name, citation.first) == citation.last:
            return after.defines(name, first) or first
    if citation.kind != "excerpt":
        mapped = _aligned(before.path, after.path).get(citation.last, 0)
        if mapped >= first:
            return mapped
    return first + citation.last - citation.first


@functools.lru_cache(maxsize=512)
def _aligned(old: Path, new: Path) -> dict[int, int]:
    """Lines of the old file that stand in the new one -> their new numbers."""
    before, after = open_pinned(old), open_pinned(new)
    assert before is not None and after is not None
    blocks = difflib.SequenceMatcher(None, before.lines, after.lines).get_matching_blocks()
    return {b.a + i + 1: b.b + i + 1 for b in blocks for i in range(b.size)}
