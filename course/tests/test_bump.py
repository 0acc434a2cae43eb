"""`course verify --bump`, on two small trees: what stands, what moves, what is gone; and only numbers are written."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from rich.console import Console

from course import cli
from course.labs import LabError
from course.pages.citations import check_page, pinned_tree
from course.upstream import bump, bump_report, fetch, release
from course.upstream.fetch import UpstreamError

pytestmark = pytest.mark.maintainer

OLD = '''"""Blocks."""
LIMIT = 3


class Pool:
    """A pool."""

    def free(self, n):
        self.check(n)
        return n

    def take(self, n):
        self.check(n)
        left = LIMIT - n  # what is left
        return left


class Other:
    def free(self, n):
        return self.check(n)


def helper(a):
    return a
'''
NEW = '''"""Blocks, and more."""
import os

LIMIT = 3


class Base:
    def free(self, n):
        return None


class Pool:
    """A pool."""

    def free(self, n):
        log(n)
        self.check(n)
        return n

    def take(self, n):
        self.check(n)
        left = LIMIT - n  # what is left
        assert left
        return left


def twice():
    return 1


if os:
    def twice():
        return 2
'''
PAGE = """# Page

`upstream/vllm/pool.py:8` — `free`, `:9` — calls `check`, `:13` — calls `check`; `:8-10` — `Pool.free`.
<!-- kept --> See `upstream/vllm/pool.py:14` — "what is left", `:2` — `LIMIT` and `:19` — `free`.

| `upstream/vllm/pool.py:23` | `helper` |
| `upstream/vllm/gone.py:1` | `lost` |
| `upstream/vllm/kept.py:1-2` | `kept` |

<!-- upstream: vllm/pool.py:13-14 -->
```python
self.check(n)
left = LIMIT - n  # what is left
```

<!-- upstream: vllm/pool.py:14-15 -->
```python
left = LIMIT - n  # what is left
return left
```

```text
take  upstream/vllm/pool.py:12 — `take`, and 8 or :8 are left alone
```

The file `upstream/vllm/gone.py`.
"""


def tree(folder: Path, **files: str) -> Path:
    (folder / "vllm").mkdir(parents=True)
    for name, text in files.items():
        (folder / "vllm" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    kept = "def kept():\n    return 1\n"
    old = tree(tmp_path / "old", pool=OLD, gone="def lost():\n    pass\n", kept=kept)
    return old, tree(tmp_path / "new", pool=NEW, kept=kept, other="x = 1\n\ndef lost():\n    pass\n")


@pytest.fixture
def course_of(tmp_path: Path) -> Path:
    root = tmp_path / "course"
    root.mkdir()
    (root / "page.md").write_text(PAGE, encoding="utf-8")
    (root / "mini_vllm").mkdir()
    (root / "mini_vllm" / "pool.py").write_text('"""Twin: ``upstream/vllm/pool.py:5``."""\n', encoding="utf-8")
    return root


def found(root: Path, trees: tuple[Path, Path]) -> list[tuple[int, int, str, int, int]]:
    return [(f.citation.line, f.citation.first, f.state, f.first, f.last) for f in bump.fates(*trees, root)]


def test_fates(course_of: Path, trees: tuple[Path, Path]) -> None:
    assert found(course_of, trees) == [
        (3, 8, bump.MOVED, 15, 15),  # free of Pool: by its full name, not Base.free
        (3, 9, bump.MOVED, 17, 17),  # the same call, in the same function
        (3, 13, bump.MOVED, 21, 21),
        (3, 8, bump.MOVED, 15, 18),  # to the end of the definition
        (4, 14, bump.MOVED, 22, 22),
        (4, 2, bump.MOVED, 4, 4),
        (4, 19, bump.LEFT, 0, 0),  # free of Other, though two classes have a free
        (6, 23, bump.LEFT, 0, 0),
        (7, 1, bump.LEFT, 0, 0),
        (8, 1, bump.STANDS, 1, 2),
        (10, 13, bump.MOVED, 21, 22),
        (16, 14, bump.LEFT, 0, 0),  # a line stands between them now
        (23, 12, bump.MOVED, 20, 20),
        (26, 0, bump.LEFT, 0, 0),
        (1, 5, bump.MOVED, 12, 12),
    ]


def test_only_numbers_are_written(course_of: Path, trees: tuple[Path, Path]) -> None:
    changed = bump_report.changes(bump.fates(*trees, course_of))
    assert {path.name for path in changed} == {"page.md", "pool.py"}
    _, text = changed[course_of / "page.md"]
    lines = dict(enumerate(text.splitlines(), 1))
    assert lines[3].startswith("`upstream/vllm/pool.py:15` — `free`, `:17` — calls `check`, `:21` — calls `check`;")
    assert lines[3].endswith("`:15-18` — `Pool.free`.")
    assert lines[4].startswith(
        '<!-- kept --> See `upstream/vllm/pool.py:22` — "what is left", `:4` — `LIMIT` and `:19`'
    )
    assert lines[10] == "<!-- upstream: vllm/pool.py:21-22 -->"
    assert lines[16] == "<!-- upstream: vllm/pool.py:14-15 -->"
    assert lines[23].endswith("pool.py:20 — `take`, and 8 or :8 are left alone")
    for path, (_, text) in changed.items():
        path.write_text(text, encoding="utf-8")
    assert sum(state == bump.STANDS for _, _, state, _, _ in found(course_of, (trees[1], trees[1]))) == 10
    wrong = {p.line for p in check_page(course_of / "page.md", trees[1])}
    assert wrong == {4, 6, 7, 18, 26}


def test_a_file_without_a_last_newline_stays_so(course_of: Path, trees: tuple[Path, Path]) -> None:
    (course_of / "mini_vllm" / "pool.py").write_bytes(b'"""Twin: ``upstream/vllm/pool.py:5``."""')
    changed = bump_report.changes(bump.fates(*trees, course_of))
    before, after = changed[course_of / "mini_vllm" / "pool.py"]
    assert after != before and after.endswith('``."""')


def test_what_cannot_be_told_is_left_to_a_human(tmp_path: Path, trees: tuple[Path, Path]) -> None:
    old = tree(tmp_path / "a", m="def twice(x):\n    pass\n")
    new = tree(tmp_path / "b", m=NEW)
    page = tmp_path / "c"
    page.mkdir()
    (page / "page.md").write_text("`upstream/vllm/m.py:1` — `twice`, `:2` — `nothing`\n", encoding="utf-8")
    fates = bump.fates(old, new, page)
    assert [fate.state for fate in fates] == [bump.LEFT, bump.WRONG]
    assert "it is defined on line 27, 32" in fates[0].note and "run `course verify`" in fates[1].note


def test_the_report(course_of: Path, trees: tuple[Path, Path], tmp_path: Path) -> None:
    console = Console(width=100, record=True, file=open(tmp_path / "log.txt", "w", encoding="utf-8"))  # noqa: SIM115
    old, new = release.Release("1.0", trees[0]), release.Release("1.1", trees[1], "abc", "def")
    bump_report.compare(old, new, console, True, course_of)
    text = console.export_text()
    assert "page.md:3: moved: upstream/vllm/pool.py:8 `free`  -> :15\n" in text
    assert "page.md:7: left: upstream/vllm/gone.py:1 `lost`  upstream/vllm/gone.py is not a file of the" in text
    counts = "1 stands, 9 moved, 5 left"
    assert f"15 citations of vLLM 1.0, against 1.1: {counts}\n" in text
    assert "9 line numbers changed in 2 files" in text and "5 citations need a human" in text
    assert "pool.py:15` — `free`" in (course_of / "page.md").read_text(encoding="utf-8")


def test_a_release_is_a_folder_or_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tree(tmp_path / "vllm-9", _version="__commit_id__ = commit_id = 'g0123abc'\n")
    assert release.release(str(folder)) == release.Release("vllm-9", folder, "0123abc")
    with pytest.raises(UpstreamError, match="holds no folder vllm/"):
        release.release(str(tmp_path))
    with pytest.raises(UpstreamError, match="neither a folder nor a version"):
        release.release("no-such-thing", tmp_path)

    def download(temp: Path, pin: fetch.Pin, say: Console) -> Path:
        assert pin.version == "9.0.1"
        with tarfile.open(temp / "vllm-9.0.1.tar.gz", "w:gz") as tar:
            tar.add(folder, "vllm-9.0.1")
        return temp / "vllm-9.0.1.tar.gz"

    monkeypatch.setattr(fetch, "download_sdist", download)
    first = release.release("v9.0.1", tmp_path, Console(quiet=True))
    assert (
        (first.tree / "vllm" / "_version.py").is_file() and first.commit == "0123abc" and len(first.sdist_sha256) == 64
    )
    monkeypatch.setattr(fetch, "download_sdist", None)  # the second time nothing is fetched
    assert release.release("9.0.1", tmp_path) == first


def test_the_command_asks_for_what_belongs_together(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="belongs to --bump"):
        cli.verify(write=True)
    error = UpstreamError if pinned_tree() else LabError  # without the pinned tree there is nothing to compare with
    with pytest.raises(error):
        bump_report.against(str(tmp_path / "nowhere"), Console(quiet=True), False)
