"""`docs/corridor.md` and the table of what a reader can pass by are what a trace and the data make of them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from course.labs import ROOT

pytestmark = pytest.mark.maintainer
AGAIN = "python docs/corridor_page.py makes it again"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("corridor_page")


def test_the_page_is_what_a_prompt_enters(maker: ModuleType) -> None:
    said = maker.TARGET.read_text(encoding="utf-8")
    assert said == maker.page(), AGAIN
    assert said.count("\n") <= maker.LIMIT, "whoever wants to read the engine has to read it"


def test_the_table_of_phases_is_made_from_data(maker: ModuleType) -> None:
    assert maker.ENGINE.read_text(encoding="utf-8") == maker.engine_page(), AGAIN


def test_every_phase_has_its_rows(maker: ModuleType) -> None:
    text = maker.ENGINE.read_text(encoding="utf-8")
    phases = {f"{number:02}" for number in range(20)}
    assert {line[2:4] for line in maker.phases_table(text).splitlines()[2:]} == phases
    assert set(maker.rooms_of(text)) <= phases
