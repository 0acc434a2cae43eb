"""The clean copy of the course in which submissions run: tests and engine, no solutions, no listed mistakes."""

import shutil
import sys
import sysconfig
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
        for captured in (root / phase).glob("labs/lab-*/captured"):  # a lab may read what another has measured
            shutil.copytree(captured, target / captured.relative_to(root), ignore=_OUT)
    for lab in labs:
        folder = target / lab.phase / "labs" / lab.slug
        shutil.copytree(root / lab.phase / "labs" / lab.slug, folder, ignore=_OUT, dirs_exist_ok=True)
    return target


_SYSTEM = """
    /lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/share/zoneinfo /etc/ld.so.cache /etc/localtime /dev/urandom
    /proc/cpuinfo /proc/meminfo /proc/self /sys/devices/system/cpu
"""


def readable(*private: Path) -> list[str]:
    """Files and folders that a fork may read besides the clean copy: Python, its packages, the system's libraries. A
    folder that is one of ``private`` (or this repository), holds one, or stands in one is left out; the library folder
    of the Python environment that runs is not."""
    prefixes = [Path(p).resolve() for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    python = [prefix / name for prefix in prefixes for name in ("lib", "lib64")]
    python += [Path(p).resolve() for name, p in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))]
    hidden = [p.resolve() for p in (ROOT, *private)]
    others = [Path(p) for p in (*_SYSTEM.split(), *filter(None, sys.path))]
    fine = [
        p
        for p in others
        if not any(p.resolve() == h or p.resolve() in h.parents or h in p.resolve().parents for h in hidden)
    ]
    fine += [p for p in python if not any(p == h or p in h.parents for h in hidden)]
    return [str(p) for p in dict.fromkeys(fine) if p.exists() and p.resolve() != Path(p.root)]
