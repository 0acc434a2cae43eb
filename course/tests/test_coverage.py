"""`docs/coverage.md` is what its data and the folders of labs make of it; no row and no lab is lost."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from types import ModuleType

import pytest

from course.labs import ROOT, lab_folders, lab_of, tomllib
from course.pages.markdown import read

pytestmark = pytest.mark.maintainer
COUNTS = {"S": 11, "A": 15, "B": 6, "C": 5, "D": 6}
IDS = {f"{series}{number}" for series, count in COUNTS.items() for number in range(1, count + 1)}


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("coverage_page")


def test_the_page_is_made_from_its_data(maker: ModuleType) -> None:
    assert maker.TARGET.read_text(encoding="utf-8") == maker.page(), "python docs/coverage_page.py makes it again"


def test_no_row_is_lost_and_what_is_lacking_is_said(maker: ModuleType) -> None:
    rows = tomllib.loads(maker.DATA.read_text(encoding="utf-8"))["row"]
    assert {row["id"] for row in rows} == IDS and len(rows) == len(IDS)
    assert all(row["at"] and (row["answer"] == "yes" or row.get("note")) for row in rows)


def test_each_lab_of_the_outline_is_here_or_named_as_missing(maker: ModuleType) -> None:
    missing = tomllib.loads(maker.DATA.read_text(encoding="utf-8"))["missing"]
    here = {lab.number for folder in lab_folders() if (lab := lab_of(folder))}
    outline = {f"{phase:02d}-{n:02d}" for phase, count in enumerate(maker.OUTLINE) for n in range(1, count + 1)}
    assert len(outline) == 75 and outline <= here | set(missing)


@pytest.mark.parametrize("text", ["lab 99-01", "guide 3.99", "dive 03.99", "docs/none.md"])
def test_a_place_that_is_not_there_is_refused(maker: ModuleType, text: str) -> None:
    with pytest.raises(maker.NoPlace, match="there is no such"):
        maker.place(text)


def hours(phases: list[str]) -> float:
    """Guides and deep dives at 60 words a minute, as their heads state it, and the labs."""
    minutes = 0.0
    for folder in [next(ROOT.glob(f"phase-{phase}-*")) for phase in phases]:
        pages = [folder / name for name in ("00-guide.md", "01-deep-dive.md")]
        minutes += sum(read(page).words() for page in pages) / 60
        minutes += sum(lab.minutes for lab in map(lab_of, lab_folders()) if lab and lab.phase == folder.name)
    return minutes / 60


def test_the_hours_of_the_paths_are_those_of_their_phases() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| ((?:\d\d, )+\d\d) \| (\d+) \|", (ROOT / "docs/paths.md").read_text("utf-8"), re.M
    )
    here = {path.parents[0].name[6:8] for path in ROOT.glob("phase-*/01-deep-dive.md")}
    whole = [(name, phases.split(", "), float(stated)) for name, phases, stated in rows]
    assert len(whole) == 11
    wrong = {n: hours(p) for n, p, stated in whole if set(p) <= here and abs(hours(p) / stated - 1) > 0.1}
    assert not wrong, "docs/paths.md states other hours"


def test_the_readme_counts_the_labs_of_each_phase() -> None:
    rows = re.findall(
        r"^\| (\d\d) \| .* \| (here.*|planned) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    assert [number for number, _ in rows] == [f"{phase:02d}" for phase in range(20)]
    labs = [lab.phase[6:8] for lab in map(lab_of, lab_folders()) if lab]
    guides = {path.parents[0].name[6:8] for path in ROOT.glob("phase-*/00-guide.md")}
    wrong = {n: state for n, state in rows if n in guides and state != f"here, {labs.count(n)} labs"}
    assert not wrong, "the README's table of phases is behind"


def test_each_guide_links_the_phase_before_it() -> None:
    guides = sorted(ROOT.glob("phase-*/00-guide.md"))
    number = {guide: int(guide.parent.name[6:8]) for guide in guides}
    pairs = [(one, other) for one, other in itertools.pairwise(guides) if number[other] == number[one] + 1]
    assert len(pairs) >= 17
    wrong = [
        after.parent.name
        for before, after in pairs
        if f"../{before.parent.name}/00-guide.md" not in after.read_text(encoding="utf-8")[:900]
    ]
    assert not wrong, "the head of a guide names the phase before it"
