"""Checks that every citation of the pinned release says what stands there.

The grammar, in pages (``.md``)::

    citation  =  place " — " what
    place     =  `upstream/PATH:LINE`  |  `upstream/PATH:FIRST-LAST`
              |  `:LINE`  |  `:FIRST-LAST`
    what      =  `Symbol`  |  calls `Symbol`  |  "quoted text"  |  "`quoted code`"

PATH starts at the root of the pinned tree. The short places mean the file of the last full place in the same
paragraph, list or table. The dash is an em dash; a line may end anywhere between the parts. In a table the cell after
the place may hold ``what`` instead: ``| `upstream/PATH:LINE` | `Symbol` | ... |``.

Nothing else counts: a place without a ``what`` is an error, and so is ``upstream/PATH:LINE`` outside backticks. A file
or folder may be named without a line (`` `upstream/PATH` ``); it must exist.

``Symbol`` is defined on LINE (of its ``def``, ``class`` or assignment, not a decorator's; names are compared from their
end, ``self.x = ...`` in a method of ``A`` defines ``A.x``), a call of it stands or begins there, the text stands there
word for word. For FIRST-LAST a definition starts on FIRST and reaches at least to LAST, the others stand in between. In
a file that is not Python the line must hold the name as a whole word.

Lists of lines are written out: `` `upstream/PATH:81` — `A`, `:117` — `A.f` ``.

An excerpt is a fence directly after ``<!-- upstream: PATH:FIRST-LAST -->``; it is compared with the pinned lines word
for word (a common indent may be removed, no line may be left out), at most 15 lines.

In Python files (docstrings and comments of ``mini_vllm`` and of the phases) and in the other fences of a page,
backticks around the place are optional, double backticks count, and ``what`` may be missing where LINE is itself a
definition."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from course.labs import ROOT
from course.pages.markdown import Page, Problem, files, read
from course.upstream.pinned import PinnedFile, open_pinned

MAX_EXCERPT = 15
FORM = 'write `upstream/PATH:LINE` — `Symbol` (or — calls `Symbol`, or — "quoted text")'
_LINES = r"(?P<first>\d+)(?:-(?P<last>\d+))?"
PLACE = re.compile(rf"`(?P<path>upstream/[^`\s:]+)?:{_LINES}`")
_QUOTE = r"[\"“](?:`(?P<code>[^`]+)`|(?P<quote>[^\"”]+))[\"”]"
_WHAT = rf"(?:(?P<calls>calls\s+)?(?P<tick>`{{1,2}})(?P<symbol>[^`]+)(?P=tick)|{_QUOTE})"
_AFTER = re.compile(rf"\s*—\s*{_WHAT}")
_CELL = re.compile(rf"\s*(?:—|(?<!\\)\|)\s*{_WHAT}")
_LOOSE = re.compile(r"upstream/[^\s`:()\[\]<>\"]+:\d+")
FILE = re.compile(r"`(upstream/[^`\s:]+)`")
IN_CODE = re.compile(rf"(?P<tick0>`{{0,2}})(?P<path>upstream/[\w./+-]+):{_LINES}(?P=tick0)")
_AFTER_CODE = re.compile(rf"[\s#]*—[\s#]*{_WHAT}")
EXCERPT = re.compile(rf"upstream:\s*(?:upstream/)?(?P<path>[^\s:]+):{_LINES}")


@dataclass(frozen=True)
class Citation:
    """What is said to stand at a place of the pinned tree. ``kind``: symbol, calls, quote, or bare (in Python)."""

    line: int
    path: str
    first: int
    last: int
    kind: str
    what: str = ""


@dataclass
class Found:
    """Citations and malformed mentions of one file."""

    citations: list[Citation]
    problems: list[Problem]


def pinned_tree(root: Path = ROOT) -> Path | None:
    """The unpacked pinned release, or None where `course upstream` has not been run."""
    tree = root / "upstream"
    return tree if (tree / "vllm" / "v1" / "request.py").is_file() else None


def _what(match: re.Match[str] | None) -> tuple[str, str]:
    if match is None:
        return "bare", ""
    if match["symbol"]:
        return ("calls" if match["calls"] else "symbol"), match["symbol"]
    return "quote", (match["code"] or match["quote"]).replace("\\|", "|")


def _blocks(prose: str) -> Iterator[tuple[int, str]]:
    """(offset, text) of paragraphs, lists and tables: whatever blank lines separate."""
    for match in re.finditer(r"\S.*?(?=\n[ \t]*\n|\Z)", prose, re.S):
        yield match.start(), match[0]


def in_prose(page: Page) -> Found:
    """Citations in the running text of a page."""
    found = Found([], [])
    for start, block in _blocks(page.prose):
        path, spans = "", []
        for match in PLACE.finditer(block):
            line = page.line_of(start + match.start())
            spans.append(match.span())
            path = match["path"] or path
            row = block[block.rfind("\n", 0, match.start()) + 1 : match.start()].lstrip().startswith("|")
            kind, what = _what((_CELL if row else _AFTER).match(block, match.end()))
            if not path:
                text = f"{match[0]} has no full `upstream/PATH:LINE` before it in this paragraph, list or table"
                found.problems.append(Problem(page.path, line, text))
            elif kind == "bare":
                text = f"{match[0]} does not say what stands there: {FORM}"
                found.problems.append(Problem(page.path, line, text))
            else:
                found.citations.append(_citation(line, path, match, kind, what))
        for match in _LOOSE.finditer(block):
            if not any(a <= match.start() < b for a, b in spans):
                line = page.line_of(start + match.start())
                found.problems.append(Problem(page.path, line, f"{match[0]} is not in the citation form: {FORM}"))
    return found


def _citation(line: int, path: str, match: re.Match[str], kind: str, what: str) -> Citation:
    first = int(match["first"])
    return Citation(line, path, first, int(match["last"] or first), kind, what)


def in_code(text: str, offset: int = 0) -> Iterator[Citation]:
    """Citations in a Python file's text, or in a fence whose first line is line ``offset`` + 1."""
    for match in IN_CODE.finditer(text):
        kind, what = _what(_AFTER_CODE.match(text, match.end()))
        line = offset + text.count("\n", 0, match.start()) + 1
        yield _citation(line, match["path"], match, kind, what)


def check_citation(citation: Citation, tree: Path) -> str | None:
    """None where the pinned line is as cited, else one sentence."""
    place = f"{citation.path}:{citation.first}" + (f"-{citation.last}" if citation.last != citation.first else "")
    file = open_pinned(tree / citation.path.removeprefix("upstream/"))
    if file is None:
        return f"{citation.path} is not a file of the pinned release"
    if not 1 <= citation.first <= citation.last <= len(file.lines):
        return f"{place}: the file has {len(file.lines)} lines"
    checks = {"symbol": _check_symbol, "calls": _check_calls, "quote": _check_quote, "bare": _check_bare}
    wrong = checks[citation.kind](file, citation)
    return f"{place}: {wrong}" if wrong else None


def _check_symbol(file: PinnedFile, citation: Citation) -> str | None:
    name = file.name(citation.what)
    if name is None:
        return f'`{citation.what}` is not a name; for text write — "{citation.what}"'
    end = file.defines(name, citation.first)
    if end is None:
        lines = file.definitions(name)
        where = f"it is defined on line {', '.join(map(str, lines[:4]))}" if lines else "the file does not define it"
        return f"the line does not define {name}; {where}; the line is: {file.lines[citation.first - 1].strip()[:90]}"
    return None if citation.last <= end else f"{name} ends on line {end}"


def _check_calls(file: PinnedFile, citation: Citation) -> str | None:
    name = file.name(citation.what)
    if name is None:
        return f"`{citation.what}` is not a name"
    if any(file.calls(name, line) for line in range(citation.first, citation.last + 1)):
        return None
    lines = file.call_lines(name)
    where = f"it is called on line {', '.join(map(str, lines[:4]))}" if lines else "the file never calls it"
    return f"no call of {name} there; {where}"


def _check_quote(file: PinnedFile, citation: Citation) -> str | None:
    want = " ".join(citation.what.split()).replace("’", "'")
    if len(want) < 3:
        return f'"{want}" is too short a quotation to prove anything'
    have = " ".join(" ".join(file.lines[citation.first - 1 : citation.last]).split())
    if want in have:
        return None
    lines = [n for n, line in enumerate(file.lines, 1) if want in " ".join(line.split())]
    where = f"it stands on line {', '.join(map(str, lines[:4]))}" if lines else "no single line of the file holds it"
    return f'"{want[:80]}" does not stand there; {where}'


def _check_bare(file: PinnedFile, citation: Citation) -> str | None:
    if not file.is_python or any(file.defined_on(citation.first)):
        return None
    line = file.lines[citation.first - 1].strip()[:80]
    return f'the line defines nothing; add — ``Symbol``, calls ``Symbol`` or "quoted text"; it is: {line}'


def check_excerpts(page: Page, tree: Path) -> Iterator[Problem]:
    """Compares fences marked ``<!-- upstream: PATH:A-B -->`` with the pinned lines, and finds marks without a fence."""
    marked = 0
    for fence in page.fences:
        if not fence.note.startswith("upstream:"):
            continue
        marked += 1
        if wrong := _check_excerpt(fence.note, fence.text, tree):
            yield Problem(page.path, fence.line, wrong)
    if len(re.findall(r"^\s*<!--\s*upstream:", page.text, re.M)) > marked:
        yield Problem(page.path, 1, "an <!-- upstream: ... --> comment is not directly before a fence")


def _check_excerpt(note: str, text: str, tree: Path) -> str | None:
    match = EXCERPT.fullmatch(note)
    if match is None:
        return f"<!-- {note} --> must be <!-- upstream: PATH:FIRST-LAST -->"
    file = open_pinned(tree / match["path"])
    first = int(match["first"])
    last = int(match["last"] or first)
    if file is None:
        return f"{match['path']} is not a file of the pinned release"
    if last - first + 1 > MAX_EXCERPT:
        return f"an excerpt of {last - first + 1} lines; at most {MAX_EXCERPT}"
    return file.differs(first, last, text)


def check_page(path: Path, tree: Path) -> list[Problem]:
    """All problems of one page, in the order of its lines."""
    page = read(path)
    found = in_prose(page)
    problems = list(found.problems)
    citations = list(found.citations)
    for fence in page.fences:
        if not fence.note.startswith("upstream:"):
            citations += in_code(fence.text, fence.line - 1)
    for match in FILE.finditer(page.prose):
        named = match[1].rstrip("/")
        if not re.search(r"[*<>{}…]|NN|\.\.\.", named) and not (tree / named.removeprefix("upstream/")).exists():
            problems.append(Problem(path, page.line_of(match.start()), f"{named} is not in the pinned release"))
    problems += _check_all(citations, path, tree)
    problems += check_excerpts(page, tree)
    return sorted(problems, key=lambda p: p.line)


def _check_all(citations: Iterable[Citation], path: Path, tree: Path) -> list[Problem]:
    return [Problem(path, each.line, wrong) for each in citations if (wrong := check_citation(each, tree))]


def check_python(path: Path, tree: Path) -> Iterator[Problem]:
    """All problems of the citations in one Python file."""
    text = path.read_text(encoding="utf-8")
    yield from _check_all(in_code(text), path, tree)
    for match in re.finditer(r"upstream/[\w./+-]+\.(?:py|cu|cuh|h|cpp|md|rs)\b(?!:\d)", text):
        if not (tree / match[0].removeprefix("upstream/")).exists():
            line = text.count("\n", 0, match.start()) + 1
            yield Problem(path, line, f"{match[0]} is not in the pinned release")


def citing_files(root: Path = ROOT) -> list[Path]:
    """Pages and Python files whose citations are checked: every page, ``mini_vllm``, ``benchmarks`` and the phases."""
    python = [p for p in files(root, ".py") if p.relative_to(root).parts[0] != "course"]
    return files(root, ".md") + [p for p in python if "upstream/" in p.read_text(encoding="utf-8")]


def check_file(path: Path, tree: Path) -> list[Problem]:
    """Checks a page or a Python file."""
    return check_page(path, tree) if path.suffix == ".md" else list(check_python(path, tree))
