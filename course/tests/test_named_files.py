"""Every file of the engine and of the course that a text of the repository names is there."""

import re
import subprocess

import pytest

from course.labs import ROOT, edited_starters

pytestmark = pytest.mark.maintainer

MADE_UP = ("course/tests/test_build.py", "course/tests/test_carry.py", "course/tests/test_held.py")
"""They make a small engine of their own."""
TEXTS = (".py", ".md", ".toml", ".txt", ".yml", ".html", ".js", ".css", ".json", ".jsonl", ".svg", ".patch", "/run")


def tracked() -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not in a git clone")
    return [name for name in done.stdout.split("\0") if name.endswith(TEXTS) and name not in MADE_UP]


def test_every_file_that_is_named_is_there() -> None:
    named, hers = re.compile(r"(?<![\w/.-])(?:mini_vllm|course)/[\w/]+\.(?:py|toml)\b"), edited_starters()
    missing = []
    for name in tracked():
        path = ROOT / name
        if path.is_file() and path not in hers:
            text = path.read_text(encoding="utf-8", errors="replace")
            missing += [f"{name}: {each}" for each in named.findall(text) if not (ROOT / each).is_file()]
    assert not missing, "\n".join(missing[:20])
