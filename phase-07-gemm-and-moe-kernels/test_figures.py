"""The committed figures are what `figures.py` draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_figures_are_current() -> None:
    script = Path(__file__).with_name("figures.py")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `python {script.parent.name}/{script.name}`"
