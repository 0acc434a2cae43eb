"""The checks of the glossary and of the lists of new words, on small pages that are wrong on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from course import glossary_check
from course.labs import ROOT

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
    assert glossary_check.unlinked(root) == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("### Block\n", "### kv block\n", "GLOSSARY.md:13: 'kv block' is defined on line 8 already"),
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
    ],
)
def test_a_breach_is_named(root: Path, old: str, new: str, message: str) -> None:
    found = change(root, old, new)
    assert any(message in text for text in found), found


def test_terms_without_a_link_are_named(root: Path) -> None:
    change(root, "(../GLOSSARY.md#step)", "(../GLOSSARY.md#block)")
    assert glossary_check.unlinked(root) == {"phase-00-foundations": ["step"]}
