"""The checker of citations, against a small tree of its own. What the course cites: test_course.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.pages import citations
from course.pages.markdown import parse

pytestmark = pytest.mark.maintainer

SOURCE = '''"""A module."""
LIMIT = 3


class Pool:
    """Blocks."""

    size: int = 0

    @property
    def free(self) -> int:
        return self.count(
            LIMIT)

    def grow(self, by: int) -> None:
        self.total = by  # never shrinks
        a, self.b = helper(by), 2
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "upstream" / "vllm"
    folder.mkdir(parents=True)
    (folder / "pool.py").write_text(SOURCE, encoding="utf-8")
    (folder / "k.cu").write_text("// kernel\n__global__ void copy_blocks(int n) {\n  launch(n);\n}\n", encoding="utf-8")
    return folder.parent


def check(text: str, tree: Path) -> list[str]:
    page = tree.parent / "page.md"
    page.write_text(text, encoding="utf-8")
    return [p.text for p in citations.check_page(page, tree)]


@pytest.mark.parametrize(
    "text",
    [
        "`upstream/vllm/pool.py:5` — `Pool`",
        "`upstream/vllm/pool.py:11` — `Pool.free`",
        "`upstream/vllm/pool.py:11` —\n`free()`",
        "`upstream/vllm/pool.py:11-13` — `Pool.free`",
        "`upstream/vllm/pool.py:2` — `LIMIT`, `:8` — `Pool.size`; `:16` — `Pool.total`",
        "`upstream/vllm/pool.py:17` — `self.b`",
        "`upstream/vllm/pool.py:17` — calls `helper`",
        "`upstream/vllm/pool.py:12` — calls `self.count`",
        "`upstream/vllm/pool.py:15-17` — calls `helper`",
        '`upstream/vllm/pool.py:16` — "never  shrinks"',
        "`upstream/vllm/pool.py:16` — “`self.total = by`”",
        '`upstream/vllm/pool.py:12-13` — "self.count( LIMIT)"',
        "`upstream/vllm/k.cu:2` — `copy_blocks`",
        "`upstream/vllm/k.cu:3` — calls `launch`",
        "`upstream/vllm/pool.py` and `upstream/vllm/`",
        "| a | b |\n|---|---|\n| `upstream/vllm/pool.py:5` | `Pool` |\n| `:15` | `Pool.grow` |",
        '| `upstream/vllm/pool.py:5` — `Pool` | "anything" |',
        "```text\nstep  upstream/vllm/pool.py:15 — `grow`\n```",
        "<!-- upstream: vllm/pool.py:12-13 -->\n```python\nreturn self.count(\n    LIMIT)\n```",
    ],
)
def test_true_citations_pass(text: str, tree: Path) -> None:
    assert check(text, tree) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("`upstream/vllm/pool.py:10` — `Pool.free`", "defined on line 11"),
        ("`upstream/vllm/pool.py:11` — `Pond.free`", "the file does not define it"),
        ("`upstream/vllm/pool.py:11-14` — `Pool.free`", "ends on line 13"),
        ("`upstream/vllm/pool.py:16` — calls `helper`", "called on line 17"),
        ('`upstream/vllm/pool.py:15` — "never shrinks"', "stands on line 16"),
        ('`upstream/vllm/pool.py:15` — "by"', "too short"),
        ("`upstream/vllm/pool.py:99` — `Pool`", "has 17 lines"),
        ("`upstream/vllm/pond.py:1` — `Pool`", "not a file of the pinned release"),
        ("`upstream/vllm/pool.py:5` — `x = 1`", "is not a name"),
        ("`upstream/vllm/pool.py:5`, the pool", "does not say what stands there"),
        ("`upstream/vllm/pool.py:5` - `Pool`", "does not say what stands there"),
        ("upstream/vllm/pool.py:5 — `Pool`", "is not in the citation form"),
        ("`:5` — `Pool`", "has no full"),
        ("`upstream/vllm/pool.py:5` — `Pool`\n\n`:11` — `free`", "has no full"),
        ("`upstream/vllm/pond.py`", "is not in the pinned release"),
        ("| `upstream/vllm/pool.py:6` | `Pool` |", "defined on line 5"),
        ("| `upstream/vllm/pool.py:5` | the pool |", "does not say what stands there"),
        ("`upstream/vllm/k.cu:1` — `copy_blocks`", "does not define"),
        ("<!-- upstream: vllm/pool.py:2 -->\n```python\nLIMIT = 4\n```", "the pinned file is 'LIMIT = 3'"),
        ("<!-- upstream: vllm/pool.py:1-16 -->\n```python\n```", "at most 15"),
        ("<!-- upstream: vllm/pool.py:2-5 -->\n```python\nLIMIT = 3\n```", "is 4 lines, the excerpt has 1"),
        ("<!-- upstream: vllm/pool.py:2 -->\n\nLIMIT = 3", "not directly before a fence"),
        ("```text\nupstream/vllm/pool.py:6 the pool\n```", "the line defines nothing"),
    ],
)
def test_false_citations_fail(text: str, message: str, tree: Path) -> None:
    found = check(text, tree)
    assert len(found) == 1 and message in found[0]


def test_python_files(tree: Path) -> None:
    file = tree.parent / "mini.py"
    file.write_text(
        '"""Twin: ``upstream/vllm/pool.py:5`` — ``Pool``.\n\nSee upstream/vllm/pool.py:15.\n"""\n'
        '# upstream/vllm/pool.py:16 —\n# "never shrinks"\n'
        "x = 1  # upstream/vllm/pool.py:12\ny = 'upstream/vllm/pond.py'\n"
    )
    problems = list(citations.check_python(file, tree))
    assert [p.line for p in problems] == [7, 8]
    assert "the line defines nothing" in problems[0].text


def test_the_finding_names_the_page_and_its_line() -> None:
    found = citations.in_prose(parse("a\n\nb `upstream/x.py:1` — `A`\nc `:2` — `B`\n"))
    assert [(c.line, c.path, c.first, c.what) for c in found.citations] == [
        (3, "upstream/x.py", 1, "A"),
        (4, "upstream/x.py", 2, "B"),
    ]
