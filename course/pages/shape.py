"""Checks of the pages: shape of the phase folders, headings of lab READMEs, links, glossary, leftovers."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from course.labs import ROOT, TAGS, lab_folders
from course.pages.markdown import Page, Problem, files, read

_PAGES = "00-guide.md 01-deep-dive.md 02-mini-build.md EXERCISES.md INTERVIEW.md CHEATSHEET.md labs/README.md"
PAGES = _PAGES.split()
LAB_FILES = ("README.md", "starter.py", "solution.py", "test_lab.py")
FLOORS = {"00-guide.md": 2500, "01-deep-dive.md": 2500, "INTERVIEW.md": 1200}
LAB_FLOOR = 600
FLAGSHIPS = {2, 3, 5}
TAG = re.compile(rf"\[({'|'.join(TAGS)})\]")
_SECTIONS = """why this lab exists · background · files · run · what to implement · what you should see ·
    what the tests prove · common mistakes · hints · going further · references"""
SECTIONS = [" ".join(section.split()) for section in _SECTIONS.split("·")]
HEAD = ("time", "prerequisites", "outcomes")
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:root|work|home/\w+)/[\w.-]+")


def phases(root: Path = ROOT) -> list[Path]:
    """The phase folders that hold a page or a lab."""
    found = {page.parent for page in root.glob("phase-[0-9][0-9]-*/*.md")}
    return sorted(found | {folder.parents[1] for folder in lab_folders(root)})


def check_phase(folder: Path) -> list[Problem]:
    """Pages there, and long enough."""
    problems = [Problem(folder / name, 1, "missing") for name in PAGES if not (folder / name).is_file()]
    scale = 1.6 if int(folder.name[6:8]) in FLAGSHIPS else 1.0
    for name, floor in FLOORS.items():
        page = folder / name
        if page.is_file() and read(page).words() < floor * scale:
            problems.append(Problem(page, 1, f"{read(page).words()} words outside code, of {floor * scale:.0f}"))
    guide = folder / "00-guide.md"
    return problems + (_check_head(read(guide)) if guide.is_file() else [])


def check_lab_folder(folder: Path) -> list[Problem]:
    """Four files; in the README a hardware tag, the head, the sections in order, three folded hints."""
    problems = [Problem(folder / name, 1, "missing") for name in LAB_FILES if not (folder / name).is_file()]
    readme = folder / "README.md"
    if not readme.is_file():
        return problems
    page = read(readme)
    if not TAG.search(page.text[:400]):
        problems.append(Problem(readme, 1, f"no hardware tag ({', '.join(f'[{t}]' for t in TAGS)}) near the top"))
    if page.words() < LAB_FLOOR:
        problems.append(Problem(readme, 1, f"{page.words()} words outside code, of {LAB_FLOOR}"))
    return [*problems, *_check_head(page), *_check_sections(page)]


def _check_head(page: Page) -> list[Problem]:
    top = "\n".join(page.prose.splitlines()[:30]).lower()
    missing = [word for word in HEAD if word not in top]
    return [Problem(page.path, 1, f"the head of the page does not say: {', '.join(missing)}")] if missing else []


def _check_sections(page: Page) -> Iterator[Problem]:
    heads = [(line, _plain(text)) for line, level, text in page.headings() if level == 2]
    at: list[int] = []
    for section in SECTIONS:
        line = next((line for line, text in heads if text.startswith(section)), None)
        if line is None:
            yield Problem(page.path, 1, f'no section "## {section.capitalize()}"')
        elif at and line < at[-1]:
            yield Problem(page.path, line, f'"{section}" is out of order: {" · ".join(SECTIONS)}')
        else:
            at.append(line)
    hints = next((line for line, text in heads if text.startswith("hints")), None)
    if hints is not None:
        end = min((line for line, _ in heads if line > hints), default=len(page.text.splitlines()) + 1)
        folded = "\n".join(page.prose.splitlines()[hints : end - 1]).count("<details")
        if folded < 3:
            yield Problem(page.path, hints, f"{folded} folded hints (<details>), of three")


def _plain(heading: str) -> str:
    return re.sub(r"^[\d.\s·)]+", "", re.sub(r"[`*_]", "", heading)).strip().lower()


def check_links(page: Page, root: Path = ROOT) -> Iterator[Problem]:
    """Relative targets exist, anchors too."""
    for line, target in page.links():
        if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.I):
            continue
        if wrong := _check_target(page, unquote(target), root):
            yield Problem(page.path, line, f"link to {target}: {wrong}")


def _check_target(page: Page, target: str, root: Path) -> str | None:
    name, _, anchor = target.partition("#")
    path = (page.path.parent / name).resolve() if name else page.path
    if "upstream/" in name:
        return "the pinned tree is not part of the repository; cite it instead"
    if not path.exists():
        return "there is no such file"
    if root.resolve() not in (path.resolve(), *path.resolve().parents):
        return "it leads out of the repository"
    if anchor and path.suffix == ".md" and anchor not in read(path).anchors():
        return f"the page has no heading for #{anchor}"
    return None


def check_leftovers(path: Path) -> Iterator[Problem]:
    """No notes to self, no path of somebody's machine."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, what in ((LEFTOVER, "a note to self"), (MACHINE_PATH, "a path of one machine")):
            if match := pattern.search(line):
                yield Problem(path, number, f"{what}: {match[0]}")


def all_pages(root: Path = ROOT) -> list[Path]:
    """Every page of the repository."""
    return files(root, ".md")


def text_files(root: Path = ROOT) -> list[Path]:
    """Pages and Python files outside ``course/``, whose sources name what they look for."""
    python = [p for p in files(root, ".py") if p.relative_to(root).parts[0] != "course"]
    return all_pages(root) + python


def check_shape(root: Path = ROOT) -> list[Problem]:
    """All phase and lab folders."""
    problems = [p for folder in phases(root) for p in check_phase(folder)]
    return problems + [p for folder in lab_folders(root) for p in check_lab_folder(folder)]
