"""The committed figures are what the phases' `figures.py` draw now."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.labs import ROOT
from course.verify import compare_pictures, picture_scripts

pytestmark = pytest.mark.maintainer


@pytest.mark.parametrize("script", picture_scripts(), ids=lambda script: script.parent.name)
def test_figures_are_current(script: Path) -> None:
    unchanged, text = compare_pictures(script)
    assert unchanged, f"{text}\nrun `python {script.relative_to(ROOT).as_posix()}`"
