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
    serve fastapi uvicorn httpx openai, docs mkdocs material, dev ruff mypy transformers
"""
EXTRAS = {name: modules for name, *modules in map(str.split, _EXTRAS.split(","))}


@dataclass(frozen=True)
class Finding:
    """``needed``: the course does not work without it; ``mend``: a command or a sentence for where it is not good."""

    what: str
    state: str
    good: bool
    needed: bool = False
    mend: str = ""


def findings() -> Iterator[Finding]:
    """Looks at everything, cheapest first; changes nothing."""
    good = sys.version_info >= (3, 10)
    yield Finding("Python", platform.python_version(), good, True, "install Python 3.10 or later")
    for extra, modules in {"": BASE, **EXTRAS}.items():
        lacks = [module for module in modules if importlib.util.find_spec(module) is None]
        what, mend = (
            (f"extra {extra}", f'pip install -e ".[{extra}]"') if extra else ("base packages", "pip install -e .")
        )
        yield Finding(what, f"lacks {', '.join(lacks)}" if lacks else "complete", not lacks, not extra, mend)
    git, clone, cuda = shutil.which("git") is not None, (ROOT / ".git").exists(), has_cuda()
    yield Finding("git", "found" if git else "absent", git, mend="install git")
    mend = "git clone the course; copy your starter.py files over"
    yield Finding("git history (reset, update)", "found" if clone else "absent: a downloaded archive", clone, mend=mend)
    yield Finding("NVIDIA GPU", "found" if cuda else "none; GPU labs have captured runs", cuda)
    wrong = fetch.inspect(ROOT / "upstream")
    yield Finding("pinned vLLM source", wrong or fetch.PIN.tag, not wrong, mend="course upstream")
    python = vllm_python()
    there = python is not None and python.is_file()
    yield Finding("real vLLM on the CPU", "found" if there else "absent", there, mend="course vllm")
    pocket = (ROOT / "models" / "pocket" / "config.json").is_file()
    yield Finding("committed checkpoint", "models/pocket" if pocket else "absent", pocket, True, "git checkout models")
