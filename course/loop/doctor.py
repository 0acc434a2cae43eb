"""`course doctor`: what works on this machine, and the command that mends what does not."""

import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from course.labs import ROOT, vllm_python
from course.pytest_plugin import has_cuda
from course.upstream import fetch

BASE = ("numpy", "pytest", "pytest_timeout", "rich", "typer", "jinja2", "regex", "threadpoolctl")
_EXTRAS = """
    test hypothesis xdist unearth, hub huggingface_hub tokenizers, torch torch, triton torch triton, ray ray,
    serve fastapi uvicorn httpx openai, docs mkdocs material, watch watchfiles, dev ruff mypy transformers
"""
EXTRAS = {name: modules for name, *modules in map(str.split, _EXTRAS.split(","))}


@dataclass(frozen=True)
class Finding:
    """``needed``: the course does not work without it; ``mend``: a command or a sentence, "" where all is well."""

    what: str
    state: str
    good: bool
    needed: bool = False
    mend: str = ""


def findings() -> Iterator[Finding]:
    """Looks at everything, cheapest first; changes nothing."""
    version = platform.python_version()
    good = sys.version_info >= (3, 10)
    yield Finding("Python", version, good, True, "" if good else "install Python 3.10 or later")
    base = [module for module in BASE if not _has(module)]
    yield Finding("base packages", _state(base), not base, True, "pip install -e ." if base else "")
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if not _has(module)]
        mend = f'pip install -e ".[{extra}]"' if missing else ""
        yield Finding(f"extra {extra}", _state(missing), not missing, mend=mend)
    git = shutil.which("git") is not None
    yield Finding("git", "found" if git else "absent", git, mend="" if git else "install git")
    clone = (ROOT / ".git").exists()
    state = "found" if clone else "absent: a downloaded archive"
    mend = "" if clone else "git clone the course; copy your starter.py files over"
    yield Finding("git history (reset, update)", state, clone, mend=mend)
    cuda = has_cuda()
    yield Finding("NVIDIA GPU", "found" if cuda else "none; GPU labs have captured runs", cuda)
    wrong = fetch.inspect(ROOT / "upstream")
    yield Finding("pinned vLLM source", wrong or fetch.PIN.tag, not wrong, mend="course upstream" if wrong else "")
    python = vllm_python()
    there = python is not None and python.is_file()
    yield Finding("real vLLM on the CPU", "found" if there else "absent", there, mend="" if there else "course vllm")
    pocket = (ROOT / "models" / "pocket" / "config.json").is_file()
    state, mend = ("models/pocket", "") if pocket else ("absent", "git checkout models")
    yield Finding("committed checkpoint", state, pocket, True, mend)


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _state(missing: list[str]) -> str:
    return f"lacks {', '.join(missing)}" if missing else "complete"
