"""Checks of ``GLOSSARY.md``, of the pages' links to it, and of their lists of new words.

A definition is a heading of the third level, with text below it. Under a heading of the second level stands a theme;
the list ``Themes:`` at the top names the themes in their order. A paragraph of a page that begins with **New words**
lists terms, each a link to its definition."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from course.labs import ROOT
from course.pages.markdown import Page, Problem, read, slug
from course.pages.shape import all_pages, phases

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_NEW_WORDS = re.compile(r"^(?:>\s*)?\*\*New words\b.*?(?=\n[>\s]*\n|\Z)", re.M | re.S)
_HOME = re.compile(r"\bPhases? (\d\d)\b")
_FRAME = re.compile(r"New words(?: of this phase)?|, each in the|[>*·:,.\s]")


def definitions(page: Page) -> Iterator[tuple[int, str, str]]:
    """(line, term, text below it) of each definition."""
    lines = page.text.splitlines()
    heads = [*page.headings(), (len(lines) + 1, 0, "")]
    for (line, level, text), (end, _, _) in itertools.pairwise(heads):
        if level == 3:
            yield line, re.sub(r"[`*]", "", text).strip(), "\n".join(lines[line : end - 1]).strip()


def check(root: Path = ROOT) -> list[Problem]:
    """All of the checks."""
    glossary = read(root / "GLOSSARY.md")
    problems = [*check_terms(glossary), *_check_themes(glossary)]
    terms = {slug(term) for _, term, _ in definitions(glossary)}
    pages = [read(path) for path in all_pages(root)]
    problems += [p for page in pages for p in (*check_new_words(page, terms), *check_headings(page))]
    return [*problems, *check_home(glossary, root)]


def check_terms(glossary: Page) -> Iterator[Problem]:
    """A term is defined once, says which phase teaches it or where to read on, and is no other spelling of another."""
    seen: dict[str, tuple[int, str]] = {}
    if not any(definitions(glossary)):
        yield Problem(glossary.path, 1, "no term found: each definition has a heading of the third level")
    for line, term, text in definitions(glossary):
        plain = re.sub(r"[\W_]", "", term.casefold()).removesuffix("s")
        first, as_what = seen.setdefault(plain, (line, term))
        if first != line:
            yield Problem(glossary.path, line, f"{term!r} is defined already, as {as_what!r} on line {first}")
        if not text:
            yield Problem(glossary.path, line, f"{term!r} is not defined")
        elif not re.search(r"\bPhases? \d\d\b|\bSee \S|\]\(#", text):
            text = f"{term!r} names neither its phase (Phase NN.) nor where to read on (See)"
            yield Problem(glossary.path, line, text)


def _check_themes(glossary: Page) -> list[Problem]:
    """The list at the top and the sections are in the same order."""
    sections = [slug(text) for _, level, text in glossary.headings() if level == 2]
    top = re.search(r"^Themes:.*?(?=\n\s*\n|\Z)", glossary.prose, re.M | re.S)
    listed = [target[1:] for _, target in _LINK.findall(top[0])] if top else []
    if listed == sections:
        return []
    wrong = next((a or b for a, b in itertools.zip_longest(listed, sections) if a != b), "")
    line = glossary.line_of(top.start()) if top else 1
    return [Problem(glossary.path, line, f"the list of themes is not that of the sections, from #{wrong} on")]


def new_words(page: Page) -> Iterator[tuple[int, str]]:
    """(line, text) of the page's lists of new words."""
    for match in _NEW_WORDS.finditer(page.prose):
        yield page.line_of(match.start()), match[0]


def check_new_words(page: Page, terms: set[str]) -> Iterator[Problem]:
    """Each listed word is a link to a definition, and is listed once."""
    for line, text in new_words(page):
        seen: set[str] = set()
        for label, target in _LINK.findall(text):
            name, _, anchor = target.partition("#")
            if not name.endswith("GLOSSARY.md") or (not anchor and label != "glossary"):
                yield Problem(page.path, line, f"the new word {label!r} is not linked to the glossary")
            elif anchor and anchor not in terms:
                yield Problem(page.path, line, f"the glossary does not define {label!r} (#{anchor})")
            if anchor in seen:
                yield Problem(page.path, line, f"the new word {label!r} is listed twice")
            seen.add(anchor or target)
        if rest := _FRAME.sub(" ", _LINK.sub("", text)).strip():
            yield Problem(page.path, line, f"a new word without a link to the glossary: {rest[:60]!r}")


def check_home(glossary: Page, root: Path = ROOT) -> Iterator[Problem]:
    """The pages of the phase that the glossary gives a term to (the first that it names) link it somewhere, so that
    whoever meets the word there can look it up without searching. A phase without a guide is still being written."""
    for folder in phases(root):
        if not (folder / "00-guide.md").is_file():
            continue
        pages = [read(path) for path in all_pages(root) if folder in path.parents]
        linked = {target.partition("#")[2] for page in pages for _, target in page.links() if "GLOSSARY.md#" in target}
        for line, term, text in definitions(glossary):
            home = _HOME.search(text)
            if home and home[1] == folder.name[6:8] and slug(term) not in linked:
                text = f"no page of {folder.name} links {term!r}: link its first use there to #{slug(term)}, or name "
                yield Problem(glossary.path, line, text + "the phase that teaches it")


def check_headings(page: Page) -> list[Problem]:
    """No heading links the glossary: the link would spoil its anchor and its entry in the contents."""
    linking = [(line, text) for line, _, text in page.headings() if "GLOSSARY.md#" in text]
    return [Problem(page.path, line, f"a heading must not link the glossary: {text}") for line, text in linking]
