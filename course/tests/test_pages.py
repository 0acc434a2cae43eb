"""The python blocks of every page run; and the checks of pages themselves, on pages that are wrong on purpose."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from course.labs import ROOT
from course.pages import glossary_check, shape, snippets
from course.pages.markdown import Problem, parse, read, slug

pytestmark = pytest.mark.maintainer


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def clean(problems: Iterable[Problem]) -> None:
    found = "\n".join(map(str, problems))
    assert not found, f"\n{found}"


@pytest.mark.parametrize("path", [p for p in shape.all_pages() if snippets.steps(read(p))], ids=named)
def test_python_blocks_run(path: Path) -> None:
    clean(snippets.run_page(read(path)))


# the checks themselves

BROKEN = """# A page

See [there](nowhere.md), [here](#a-page), [below](#missing) and [code](upstream/vllm/v1/request.py).

```python
x = 2
print(x + 1)
```

<!-- output -->
```text
4
```

<!-- no-run: -->
```python
this is not python
```
"""


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text(BROKEN, encoding="utf-8")
    found = [str(p) for p in shape.check_links(read(tmp_path / "b.md"), tmp_path)]
    assert len(found) == 3
    assert "nowhere.md" in found[0] and "#missing" in found[1] and "cite it instead" in found[2]


def test_shown_output_is_compared(tmp_path: Path) -> None:
    problems = snippets.run_page(parse(BROKEN, Path("a.md")), tmp_path)
    assert [str(p) for p in problems] == ["a.md:12: the page shows '4', the code prints '3'"]
    assert not snippets.run_page(parse(BROKEN.replace("4\n", "3\n"), Path("a.md")), tmp_path)


def test_no_run_needs_a_reason() -> None:
    assert [p.line for p in snippets.check_marks(parse(BROKEN))] == [17]


def test_a_failing_block_names_its_line(tmp_path: Path) -> None:
    text = "# P\n\n```python\na = 1\n```\n\nwords\n\n```python\na += 1\nb = a / 0\n```\n"
    problems = snippets.run_page(parse(text, Path("p.md")), tmp_path)
    assert [str(p) for p in problems] == ["p.md:11: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("import time\nwhile True: time.sleep(1)", "ran longer"),
        ("import os; os._exit(3)", "ended their process"),
        ("raise SystemExit(1)", "SystemExit"),
    ],
)
def test_a_block_that_hangs_or_dies_is_told(block: str, text: str, tmp_path: Path) -> None:
    limit = 1 if "while" in block else 300
    problems = snippets.run_page(parse(f"```python\n{block}\n```\n"), tmp_path, timeout=limit)
    assert len(problems) == 1 and text in problems[0].text


def test_each_page_has_a_process_of_its_own(tmp_path: Path) -> None:
    """One process imports the engine and forks: what a page leaves behind, the next does not find."""
    leaves = "import sys, json\njson.left = 1\nleft = 1\nprint('x' * 200_000)"
    asks = "import json, sys\nassert 'left' not in globals() and not hasattr(json, 'left')"
    for block in (leaves, "import os; os._exit(3)", asks):
        problems = snippets.run_page(parse(f"```python\n{block}\n```\n"), tmp_path)
        assert ["ended their process" in p.text for p in problems] == ([True] if "_exit" in block else [])


def test_where_there_is_no_fork_the_answers_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert not snippets.run_page(parse(BROKEN.replace("4\n", "3\n"), Path("a.md")), tmp_path)
    text = BROKEN.replace("print(x + 1)", "import os; os._exit(3)")
    assert "ended their process" in snippets.run_page(parse(text, Path("a.md")), tmp_path)[0].text


def test_fences_inside_lists_and_details() -> None:
    page = parse("- item\n\n  ```python\n  x = 1\n  if x:\n      y = 2\n  ```\n\n~~~text\n```\n~~~\nafter\n")
    assert [(f.language, f.line) for f in page.fences] == [("python", 4), ("text", 10)]
    assert page.fences[0].text == "x = 1\nif x:\n    y = 2"
    assert page.prose.splitlines()[11] == "after"


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("0.3 Tokens, bytes & `BPE`", "03-tokens-bytes--bpe"),
        ("What you should see", "what-you-should-see"),
        ("A [link](x.md) — dash", "a-link--dash"),
    ],
)
def test_slugs_are_githubs(title: str, anchor: str) -> None:
    assert slug(title) == anchor


def test_lab_readme_sections_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "phase-00-x" / "labs" / "lab-01-y"
    folder.mkdir(parents=True)
    heads = list(shape.SECTIONS)
    heads[1], heads[2] = heads[2], heads[1]
    body = "\n\n".join(f"## {h.capitalize()}\n\n{'word ' * 60}" for h in heads if h != "references")
    (folder / "README.md").write_text(f"# Lab\n\n[CPU-OK] Time 10 min. Prerequisites: none. Outcomes: x\n\n{body}\n")
    found = [p.text for p in shape.check_lab_folder(folder)]
    assert found.count("missing") == 3
    assert any("References" in text for text in found)
    assert any("out of order" in text for text in found)
    assert any("0 folded hints" in text for text in found)


def test_leftovers_are_found(tmp_path: Path) -> None:
    note, path = "TO" + "DO", "/ro" + "ot/x"
    (tmp_path / "a.md").write_text(f"fine\n{note}: later\nrun {path}/y\n")
    assert [p.line for p in shape.check_leftovers(tmp_path / "a.md")] == [2, 3]


def test_a_term_defined_twice_is_found() -> None:
    page = parse("# G\n\n### KV block\nA.\n\n### `kv block`\nB.\n")
    assert [p.line for p in glossary_check.check_terms(page) if "already" in p.text] == [6]
