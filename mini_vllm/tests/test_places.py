"""`docs/places.md`: each file stands where vLLM's stands, or in the table of exceptions. Needs the pinned tree."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE, UPSTREAM = ROOT / "docs" / "places.md", ROOT / "upstream"
PREFIXES = ("", "v1/", "model_executor/")
needs_tree = pytest.mark.skipif(
    not (UPSTREAM / "vllm" / "v1" / "request.py").is_file(), reason="upstream/ is absent: run `course upstream`"
)


def our_files() -> list[str]:
    """Every module with something in it, below mini_vllm/; tests apart."""
    package = ROOT / "mini_vllm"
    found = (path for path in package.rglob("*.py") if path.read_text(encoding="utf-8").strip())
    names = (path.relative_to(package).as_posix() for path in found)
    return sorted(name for name in names if not name.startswith("tests/"))


def twins(name: str) -> list[str]:
    """Files or packages of vLLM's that the rule puts at mini_vllm/`name`."""
    places = [f"vllm/{prefix}{name}" for prefix in PREFIXES]
    found = [place for place in places if (UPSTREAM / place).is_file()]
    return found + [f"{p[:-3]}/" for p in places if (UPSTREAM / p[:-3]).is_dir()]


def exceptions() -> dict[str, list[str]]:
    """Our file -> the places that its row names ("none": [])."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| .+? \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {ours: re.findall(r"`(.+?)`", theirs) for here, theirs in rows for ours in re.findall(r"`(.+?)`", here)}


FILES, EXCEPTIONS = our_files(), exceptions()


def fault_of_file(name: str) -> str:
    """What is wrong with the place of a file; "" where nothing is."""
    found = twins(name)
    if name in EXCEPTIONS:
        explained = len(found) == 1 and EXCEPTIONS[name]
        return f"the rule explains {name} ({found[0]}): take its row away, or say it has no twin" if explained else ""
    if len(found) != 1:
        return f"the rule gives {found} for {name}: move it, or give it a row in docs/places.md"
    doc = ast.get_docstring(ast.parse((ROOT / "mini_vllm" / name).read_text(encoding="utf-8"))) or ""
    named = found[0].removesuffix("__init__.py").rstrip("/") in doc
    return "" if named else f"the docstring of {name} must name its twin, {found[0]}"


def fault_of_row(name: str) -> str:
    """What is wrong with a row of the page; "" where nothing is."""
    if name not in FILES:
        return f"docs/places.md lists {name}, which is not there"
    missing = [place for place in EXCEPTIONS[name] if not (UPSTREAM / place).exists()]
    return f"the row of {name} names {missing}, which vLLM does not have" if missing else ""


@needs_tree
def test_a_file_stands_where_upstreams_stands_or_is_listed():
    faults = list(filter(None, map(fault_of_file, FILES)))
    assert not faults, "\n".join(faults)


@needs_tree
def test_a_row_is_of_a_file_and_its_twins_exist():
    faults = list(filter(None, map(fault_of_row, EXCEPTIONS)))
    assert not faults, "\n".join(faults)


@needs_tree
def test_what_stands_elsewhere_is_noticed(monkeypatch):
    assert "move it, or give it a row" in fault_of_file("core/nowhere.py")
    monkeypatch.setitem(EXCEPTIONS, "core/block_pool.py", ["vllm/v1/core/nowhere.py"])
    assert "the rule explains core/block_pool.py" in fault_of_file("core/block_pool.py")
    assert "names ['vllm/v1/core/nowhere.py']" in fault_of_row("core/block_pool.py")


def test_the_page_has_rows():
    assert len(EXCEPTIONS) > 40 and len(FILES) > len(EXCEPTIONS)
