"""What `course verify --bump` says and writes: the list, the counts, the new line numbers."""

import functools
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from course.labs import ROOT, LabError
from course.pages.citations import EXCERPT, pinned_tree
from course.upstream.bump import MOVED, STANDS, STATES, Fate, fates
from course.upstream.fetch import PIN
from course.upstream.release import Release, release

_PLACE = re.compile(r"(?:(?P<path>upstream/[^\s`:]+)|(?<=`)):(?P<first>\d+)(?:-(?P<last>\d+))?")


def rewrite(text: str, moves: Sequence[Fate]) -> str:
    """``text`` with the line numbers of citations that have moved; ``moves`` are all fates of the page."""
    lines = text.splitlines(keepends=True)
    by_line: dict[int, list[Fate]] = {}
    for fate in moves:
        if fate.citation.kind != "file":
            by_line.setdefault(fate.citation.line, []).append(fate)
    for number, waiting in by_line.items():
        pattern = EXCERPT if waiting[0].citation.kind == "excerpt" else _PLACE
        lines[number - 1] = pattern.sub(functools.partial(_renumbered, waiting), lines[number - 1])
    return "".join(lines)


def _renumbered(waiting: list[Fate], match: re.Match[str]) -> str:
    """One place of a line: the next waiting citation if it is the one, else left as it is."""
    first, last = int(match["first"]), int(match["last"] or match["first"])
    if not waiting:
        return match[0]
    cited = waiting[0].citation
    path = match["path"]
    if (first, last) != (cited.first, cited.last) or (path and not cited.path.endswith(path)):
        return match[0]
    fate = waiting.pop(0)
    if fate.state != MOVED:
        return match[0]
    start = match.start("first") - match.start()
    end = match.end("last" if match["last"] else "first") - match.start()
    return match[0][:start] + fate.new_lines[1:] + match[0][end:]


def changes(all_fates: Sequence[Fate]) -> dict[Path, tuple[str, str]]:
    """Pages whose numbers change -> (text now, text then)."""
    found = {}
    for path, mine in _by_page(all_fates).items():
        if any(fate.state == MOVED for fate in mine):
            text = path.read_bytes().decode("utf-8")
            found[path] = (text, rewrite(text, mine))
    return found


def _by_page(all_fates: Sequence[Fate]) -> dict[Path, list[Fate]]:
    pages: dict[Path, list[Fate]] = {}
    for fate in all_fates:
        pages.setdefault(fate.page, []).append(fate)
    return pages


def show(all_fates: Sequence[Fate], old: str, new: str, console: Console, root: Path = ROOT) -> None:
    """Lists what does not stand, page by page, then the counts."""
    for path, mine in _by_page(all_fates).items():
        for fate in mine:
            if fate.state == STANDS:
                continue
            colour = "green" if fate.state == MOVED else "red"
            then = f"-> {fate.new_lines}" if fate.state == MOVED else fate.note
            here = f"{path.relative_to(root).as_posix()}:{fate.citation.line}"
            what = textwrap.shorten(fate.what, 70, placeholder="...")
            text = f"{fate.place} {escape(what)}  {escape(then)}".rstrip()
            console.print(
                f"{escape(here)}: [{colour}]{fate.state}[/]: {text}", highlight=False, soft_wrap=True, emoji=False
            )
    counts = Counter(fate.state for fate in all_fates)
    told = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    console.print(f"{len(all_fates)} citations of vLLM {old}, against {new}: {told}", highlight=False, soft_wrap=True)


def against(what: str, console: Console, write: bool) -> None:
    """The command, against ``upstream/`` as it is now. Raises :class:`UpstreamError` or :class:`LabError`."""
    tree = pinned_tree(ROOT)
    if tree is None:
        raise LabError("upstream/ is absent: run `course upstream`, so that there is something to compare with")
    compare(Release(PIN.version, tree), release(what), console, write)


def compare(old: Release, new: Release, console: Console, write: bool, root: Path = ROOT) -> None:
    """Follows every citation, reports, and writes what was asked for."""
    with console.status(f"following the citations into {new.name}"):
        found = fates(old.tree, new.tree, root)
    if not found:
        raise LabError("the course holds no citation")
    show(found, old.name, new.name, console, root)
    for name, value in (("commit", new.commit), ("SHA-256 of the source distribution", new.sdist_sha256)):
        if value:
            console.print(f"{new.name}: {name} {value}", highlight=False, soft_wrap=True)
    changed = changes(found)
    if write:
        for path, (_, text) in changed.items():
            path.write_bytes(text.encode("utf-8"))
        moved = sum(fate.state == MOVED for fate in found)
        console.print(f"{moved} line numbers changed in {len(changed)} files", soft_wrap=True)
    elif any(fate.state == MOVED for fate in found):
        console.print("--write changes the line numbers of what has moved, and `git diff` shows them")
    left = sum(fate.state not in (STANDS, MOVED) for fate in found)
    needed = f"{left} citations need a human: read the new release there, and cite anew what the page still says"
    console.print(needed if left else "[green]every citation stands or has moved[/]", soft_wrap=True)
