"""The committed figures are what the phases' `figures.py` draw now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from course.labs import ROOT

SCRIPTS = [*sorted(ROOT.glob("phase-*/figures.py")), ROOT / "docs" / "engine_figure.py"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.parent.name)
def test_figures_are_current(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    name = script.relative_to(ROOT).as_posix()
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun `python {name}`"
