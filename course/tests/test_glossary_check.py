"""The checks of the glossary and of the lists of new words, on small pages that are wrong on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.labs import ROOT
from course.pages import glossary_check

pytestmark = pytest.mark.maintainer

GLOSSARY = """# Glossary

Themes: [paged memory](#paged-memory) ·
[scheduling](#scheduling)

## Paged memory

### KV block
A fixed number of slots.

Phases 00, 02.

### Block
Short for [KV block](#kv-block).

## Scheduling

### `step`
One round.

Phase 00.
"""
GUIDE = """# Guide

> **New words** · [KV block](../GLOSSARY.md#kv-block) · [`step`](../GLOSSARY.md#step)
>
> words that follow

**New words of this phase**, each in the [glossary](../GLOSSARY.md): [block](../GLOSSARY.md#block),
[step](../GLOSSARY.md#step).
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "GLOSSARY.md").write_text(GLOSSARY, encoding="utf-8")
    phase = tmp_path / "phase-00-foundations"
    phase.mkdir()
    (phase / "00-guide.md").write_text(GUIDE, encoding="utf-8")
    return tmp_path


def change(root: Path, old: str, new: str) -> list[str]:
    for path in (root / "GLOSSARY.md", root / "phase-00-foundations" / "00-guide.md"):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return [f"{p.path.name}:{p.line}: {p.text}" for p in glossary_check.check(root)]


def test_the_glossary_of_the_course() -> None:
    problems = glossary_check.check(ROOT)
    assert not problems, "\n" + "\n".join(map(str, problems))


def test_a_good_glossary_passes(root: Path) -> None:
    assert glossary_check.check(root) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("### Block\n", "### kv block\n", "GLOSSARY.md:13: 'kv block' is defined already, as 'KV block' on line 8"),
        ("### Block\n", "### KV-blocks\n", "GLOSSARY.md:13: 'KV-blocks' is defined already, as 'KV block'"),
        ("\nPhase 00.\n", "\n", "'step' names neither its phase"),
        ("One round.\n\nPhase 00.\n", "", "'step' is not defined"),
        (
            "(#paged-memory) ·\n",
            "(#paging) ·\n",
            "GLOSSARY.md:3: the list of themes is not that of the sections, from #paging",
        ),
        ("[scheduling](#scheduling)", "", "from #scheduling on"),
        ("GLOSSARY.md#kv-block", "GLOSSARY.md#kv-blocks", "00-guide.md:3: the glossary does not define 'KV block'"),
        ("../GLOSSARY.md#block", "../README.md#block", "00-guide.md:7: the new word 'block' is not linked"),
        ("> **New words** ·", "> **New words** · slot ·", "a new word without a link to the glossary: 'slot'"),
        ("[`step`](../GLOSSARY.md#step)", "[kv](../GLOSSARY.md#kv-block)", "the new word 'kv' is listed twice"),
        (
            "# Guide",
            "# Guide to a [block](../GLOSSARY.md#block)",
            "00-guide.md:1: a heading must not link the glossary",
        ),
    ],
)
def test_a_breach_is_named(root: Path, old: str, new: str, message: str) -> None:
    found = change(root, old, new)
    assert any(message in text for text in found), found


def test_a_term_that_its_phase_does_not_link_is_named(root: Path) -> None:
    found = change(root, " · [`step`](../GLOSSARY.md#step)", "")  # the link further down is enough
    assert found == []
    found = change(root, "[step](../GLOSSARY.md#step)", "[block](../GLOSSARY.md#block)")
    assert [text for text in found if text.startswith("GLOSSARY.md:18: no page of phase-00-foundations links 'step'")]


def test_a_link_counts_where_a_reader_can_follow_it(root: Path) -> None:
    """A plural, or another word for it, is fine; a link in code is none; another phase's link does not help."""
    links = {"[`step`](../GLOSSARY.md#step)": "", "[step](../GLOSSARY.md#step)": ""}
    for old, new in links.items():
        change(root, old, new)
    guide, other = root / "phase-00-foundations" / "00-guide.md", root / "phase-01-next"
    text = guide.read_text(encoding="utf-8")
    other.mkdir()
    (other / "00-guide.md").write_text("# Next\n\nA [step](../GLOSSARY.md#step).\n", encoding="utf-8")

    def unlinked(more: str) -> bool:
        guide.write_text(f"{text}\n{more}\n", encoding="utf-8")
        return any("links 'step'" in p.text for p in glossary_check.check(root))

    assert unlinked("Two steps and a `step`.") and unlinked("`[step](../GLOSSARY.md#step)`")
    assert unlinked("```\n[step](../GLOSSARY.md#step)\n```")
    assert not unlinked("Two [rounds of it](../GLOSSARY.md#step).")


def test_a_phase_without_a_guide_is_still_being_written(root: Path) -> None:
    guide = root / "phase-00-foundations" / "00-guide.md"
    guide.rename(guide.with_name("EXERCISES.md"))
    (guide.with_name("EXERCISES.md")).write_text("# Exercises\n", encoding="utf-8")
    assert glossary_check.check(root) == []
