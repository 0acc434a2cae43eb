"""The clean copy of the course in which submissions run: tests and engine, no solutions, no listed mistakes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from course.labs import ROOT, Lab

_OUT = shutil.ignore_patterns(
    "__pycache__", "solution.py", "mistakes", "tests", "training", "equivalent.toml", "build.toml", ".*", "*.egg-info"
)
MACHINERY = ("course", "mini_vllm", "models")


def make_clean(labs: Sequence[Lab], target: Path, root: Path = ROOT) -> Path:
    """Copies what the tests of ``labs`` need to ``target``: machinery from this repository, labs from ``root``."""
    for name in MACHINERY:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=_OUT)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(root / name, target / name)
    for phase in dict.fromkeys(lab.phase for lab in labs):  # what labs of a phase share, captured runs for example
        shutil.copytree(root / phase, target / phase, ignore=shutil.ignore_patterns("labs", "*.md", "__pycache__"))
    for lab in labs:
        shutil.copytree(root / lab.phase / "labs" / lab.slug, target / lab.phase / "labs" / lab.slug, ignore=_OUT)
    return target


def readable(*private: Path) -> list[str]:
    """Folders that a fork may read besides the clean copy: Python and its packages, and the system's libraries.

    A folder that is one of ``private``, holds one, or stands in one is left out, unless it is a Python environment.
    """
    names = "/usr /lib /lib64 /etc /dev/urandom /proc/cpuinfo /proc/self /sys/devices/system/cpu"
    system = [Path(p) for p in names.split()]
    python = [Path(p).resolve() for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    paths = [Path(p).resolve() for p in sys.path if p]
    hidden = [p.resolve() for p in (ROOT, *private)]
    extra = [p for p in paths if not any(p == h or p in h.parents or h in p.parents for h in hidden)]
    return [str(p) for p in dict.fromkeys([*system, *python, *extra]) if p.exists() and p != Path(p.root)]
