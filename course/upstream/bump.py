"""What becomes of every citation when the pin moves: the same place, another line, or gone.

Each citation is looked up in the pinned tree first (which definition it means, in which function the call stands) and
then followed into the other release, by full name, by text, and by the alignment of the two files' lines. Nothing is
guessed: a citation has ``moved`` only where one new place answers to it."""

import difflib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from course.pages import citations
from course.pages.citations import Citation
from course.labs import ROOT
from course.pages.markdown import read
from course.upstream.pinned import Name, PinnedFile, open_pinned

STANDS, MOVED, UNCLEAR, CHANGED = "stands", "moved", "unclear", "text changed"
GONE, NO_FILE, WRONG = "symbol gone", "file gone", "wrong now"
STATES = (STANDS, MOVED, UNCLEAR, CHANGED, GONE, NO_FILE, WRONG)


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
    relative = citation.path.removeprefix("upstream/").rstrip("/")
    if citation.kind == "file":
        return made(STANDS if (new / relative).exists() else NO_FILE)
    before, after = open_pinned(old / relative), open_pinned(new / relative)
    if before is None or not _holds(citation, before, old):
        return made(WRONG, note="it does not hold at the pin: run `course verify`")
    if after is None:
        return made(NO_FILE)
    found = _follow(citation, before, after)
    if not found:
        return made(CHANGED if citation.kind in ("quote", "excerpt") else GONE)
    if len(found) > 1:
        return made(UNCLEAR, note=f"it could be line {', '.join(map(str, sorted(found)[:4]))}")
    first = found[0]
    last = _last(citation, first, before, after)
    if not _holds(replace(citation, first=first, last=last), after, new):
        return made(UNCLEAR, note=f"it begins on line {first}; its last line does not follow")
    same = (first, last) == (citation.first, citation.last)
    return made(STANDS if same else MOVED, first, last)


def _holds(citation: Citation, file: PinnedFile, tree: Path) -> bool:
    if citation.kind == "excerpt":
        return file.differs(citation.first, citation.last, citation.what) is None
    return citations.check_citation(citation, tree) is None


def _follow(citation: Citation, before: PinnedFile, after: PinnedFile) -> list[int]:
    """Possible first lines in the new file: one, where it is clear which."""
    lines = _finder(citation, before)
    olds, news = lines(before), lines(after)
    mapped = _aligned(before.path, after.path).get(citation.first)
    if mapped in news:
        return [mapped]
    scope = _scope(before, citation.first)
    near = [line for line in news if _scope(after, line) == scope]
    if citation.kind == "calls" or len(near) == 1:
        news = near
        olds = [line for line in olds if _scope(before, line) == scope]
    if len(news) > 1 and len(olds) == len(news) and citation.first in olds:
        return [news[olds.index(citation.first)]]
    return news


def _finder(citation: Citation, before: PinnedFile) -> Callable[[PinnedFile], list[int]]:
    """A function that lists the lines of a file to which the citation could point."""
    if citation.kind in ("symbol", "bare") and before.is_python:
        names = _full_names(citation, before)
        return lambda file: _defined(file, names)
    if citation.kind in ("quote", "excerpt"):
        return functools.partial(_windows, citation)
    name = PinnedFile.name(citation.what) or ""
    if citation.kind == "bare":
        text = before.lines[citation.first - 1].strip()
        return lambda file: [n for n, line in enumerate(file.lines, 1) if text and line.strip() == text]
    if citation.kind == "symbol":
        return lambda file: [n for n in range(1, len(file.lines) + 1) if file.defines(name, n)]
    span = range(citation.first, citation.last + 1)
    into = next(line for line in span if before.calls(name, line)) - citation.first
    return lambda file: [n - into for n in range(1 + into, len(file.lines) + 1) if file.calls(name, n)]


def _full_names(citation: Citation, file: PinnedFile) -> set[Name]:
    """The whole dotted names that a citation means: ``forward`` on this line is ``LlamaModel.forward``."""
    wanted = tuple((PinnedFile.name(citation.what) or "").split("."))
    defined = set(file.defined_on(citation.first))
    return {n for n in defined if n[-len(wanted) :] == wanted} or defined


def _defined(file: PinnedFile, names: set[Name]) -> list[int]:
    return sorted(line for line, found in file.definitions_at.items() if any(name in names for name, _ in found))


def _windows(citation: Citation, file: PinnedFile) -> list[int]:
    """First lines of stretches that hold the quoted text, or are the excerpt, whole."""
    size = citation.last - citation.first + 1
    starts = range(1, len(file.lines) - size + 2)
    if citation.kind == "excerpt":
        return [n for n in starts if file.differs(n, n + size - 1, citation.what) is None]
    want = " ".join(citation.what.split()).replace("’", "'")
    flat = [" ".join(line.split()) for line in file.lines]
    return [n for n in starts if want in " ".join(" ".join(flat[n - 1 : n - 1 + size]).split())]


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


def _scope(file: PinnedFile, line: int) -> Name:
    """The whole name of the innermost definition around a line (not one that begins on it)."""
    rows = [(start, name, end) for start, found in file.definitions_at.items() for name, end in found]
    return max(((start, name) for start, name, end in rows if start < line <= end), default=(0, ()))[1]
