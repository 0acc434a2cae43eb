"""Nothing in the repository refers to a place of mini_vllm's before the move: no import, no path, no name of a test."""

import re
import subprocess

import pytest

from course.labs import ROOT, edited_starters
from mini_vllm import moved

pytestmark = pytest.mark.maintainer

MOVES = moved.read()
GONE = sorted((old for old in MOVES.modules if MOVES.file(old) is None), key=len, reverse=True)
OLD = re.compile(
    rf"(?<![\w/.])(?:{'|'.join(re.escape(name) for name in GONE)})(?!\w)"
    rf"|(?<!\w)(?:{'|'.join(re.escape(name.replace('.', '/')) for name in GONE)})(?:\.py\b|/(?=[\w`]))"
)
# What speaks of former places on purpose: the table, what reads it, and the tests of both.
ABOUT_IT = re.compile(
    r"mini_vllm/moved\.(py|toml)|course/loop/relocate\.py"
    r"|course/tests/(test_(moved|relocate|aliases|follow|carry_moved|carry_all|old_tree|held)|moved_fixtures)\.py"
)
MADE_UP = ("course/tests/test_build.py",)  # it makes a small engine of its own
TEXTS = (".py", ".md", ".toml", ".txt", ".yml", ".html", ".js", ".css", ".json", ".jsonl", ".svg", ".patch", "/run")


def tracked() -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not in a git clone")
    return [name for name in done.stdout.split("\0") if name.endswith(TEXTS) and not ABOUT_IT.fullmatch(name)]


def test_nothing_refers_to_the_old_tree():
    found, hers = [], edited_starters()  # `course update` puts hers right
    for name in tracked():
        path = ROOT / name
        if not path.is_file() or path in hers:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found += [f"{name}:{number}: {match[0]}" for match in OLD.finditer(line[:2000])]
    assert not found, "\n".join(found[:20])


def test_every_file_that_is_named_is_there():
    named, hers = re.compile(r"(?<![\w/.-])(?:mini_vllm|course)/[\w/]+\.(?:py|toml)\b"), edited_starters()
    missing = []
    for name in tracked():
        path = ROOT / name
        if path.is_file() and path not in hers and name not in MADE_UP:
            text = path.read_text(encoding="utf-8", errors="replace")
            missing += [f"{name}: {each}" for each in named.findall(text) if not (ROOT / each).is_file()]
    assert not missing, "\n".join(missing[:20])


@pytest.mark.parametrize("text", ["from mini_vllm.scheduler import S", "mini_vllm/kv_cache.py", "see mini_vllm/moe/`"])
def test_the_search_finds_what_it_looks_for(text):
    assert OLD.search(text)


@pytest.mark.parametrize(
    "text", ["mini_vllm.core.sched.scheduler", "mini_vllm/core/kv_cache_manager.py", "mini_vllm.engine"]
)
def test_the_search_knows_the_new_tree(text):
    assert not OLD.search(text)
