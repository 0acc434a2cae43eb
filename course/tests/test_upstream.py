"""`course upstream`, against a small archive and a small git repository; no network."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from course.upstream import fetch
from course.upstream.fetch import PIN, Pin, Unreachable, UpstreamError

pytestmark = pytest.mark.maintainer

FILES = {"vllm/v1/request.py": "class Request: ...\n", "vllm/__init__.py": "", "README.md": "# vLLM\n"}


def archive(path: Path, extra: tarfile.TarInfo | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"vllm-0.22.1/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        if extra is not None:
            tar.addfile(extra, io.BytesIO(b"x" * extra.size))
    return path


@pytest.fixture
def say() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    """A pin whose archive is on this disk and whose repository is nowhere."""
    made = archive(tmp_path / "sdist.tar.gz")
    monkeypatch.setattr(fetch, "download_sdist", lambda temp, pin, say: made)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    return replace(PIN, sdist_sha256=digest, repository=str(tmp_path / "nowhere.git"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    return tmp_path / "repo"


def git_pin(tmp_path: Path, pin: Pin) -> Pin:
    repo = tmp_path / "vllm.git"
    for name, text in FILES.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "release"], ["tag", pin.tag]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    return replace(pin, repository=repo.as_uri(), commit=head)


def out(say: Console) -> str:
    assert isinstance(say.file, io.StringIO)
    return say.file.getvalue()


def test_auto_falls_to_the_source_distribution(root: Path, pin: Pin, say: Console) -> None:
    assert fetch.ensure(root, "auto", pin, say) == "sdist"
    assert {p: (root / "upstream" / p).read_text() for p in FILES} == FILES
    assert "does not answer" in out(say) and "now holds vLLM v0.22.1" in out(say)
    assert [p.name for p in root.iterdir()] == ["upstream"]


def test_a_second_run_does_nothing(root: Path, pin: Pin, say: Console) -> None:
    fetch.ensure(root, "sdist", pin, say)
    before = (root / "upstream" / "README.md").stat().st_ino
    assert fetch.ensure(root, "sdist", pin, say) == "kept"
    assert (root / "upstream" / "README.md").stat().st_ino == before
    assert "nothing to do" in out(say)


@pytest.mark.parametrize("damage", ["missing", "shorter", "added"])
def test_a_damaged_tree_is_mended(damage: str, root: Path, pin: Pin, say: Console) -> None:
    fetch.ensure(root, "sdist", pin, say)
    request = root / "upstream" / "vllm" / "v1" / "request.py"
    if damage == "missing":
        request.unlink()
    elif damage == "shorter":
        request.write_text("class")
    else:
        (root / "upstream" / "extra.py").write_text("")
    assert fetch.ensure(root, "sdist", pin, say) == "sdist"
    assert "1 files differ" in out(say)
    assert fetch.inspect(root / "upstream", pin) == ""


def test_another_release_is_replaced(root: Path, pin: Pin, say: Console) -> None:
    fetch.ensure(root, "sdist", replace(pin, version="0.21.0", commit="a" * 40), say)
    assert fetch.inspect(root / "upstream", pin) == "holds vLLM 0.21.0, not 0.22.1"
    assert fetch.ensure(root, "sdist", pin, say) == "sdist"


def test_a_folder_of_yours_is_kept_aside(root: Path, pin: Pin, say: Console) -> None:
    (root / "upstream").mkdir()
    (root / "upstream" / "mine.txt").write_text("notes")
    fetch.ensure(root, "sdist", pin, say)
    assert (root / ".course" / "upstream-before-1" / "mine.txt").read_text() == "notes"
    assert fetch.inspect(root / "upstream", pin) == ""


def test_from_a_git_tag(root: Path, tmp_path: Path, pin: Pin, say: Console) -> None:
    pin = git_pin(tmp_path, pin)
    assert fetch.ensure(root, "auto", pin, say) == "git"
    assert json.loads((root / "upstream" / fetch.STAMP).read_text())["source"] == "git"
    assert fetch.ensure(root, "auto", pin, say) == "kept"


def test_a_clone_made_by_hand_counts(root: Path, tmp_path: Path, pin: Pin, say: Console) -> None:
    pin = git_pin(tmp_path, pin)
    subprocess.run(["git", "clone", "-q", pin.repository, str(root / "upstream")], check=True)
    assert fetch.ensure(root, "auto", pin, say) == "kept"


def test_a_moved_tag_is_refused(root: Path, tmp_path: Path, pin: Pin, say: Console) -> None:
    pin = replace(git_pin(tmp_path, pin), commit="b" * 40)
    with pytest.raises(UpstreamError, match="points at commit"):
        fetch.ensure(root, "auto", pin, say)
    assert not list(root.iterdir())


def test_git_alone_does_not_fall_back(root: Path, pin: Pin, say: Console) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        fetch.ensure(root, "git", pin, say)


def test_a_wrong_digest_is_refused(root: Path, pin: Pin, say: Console) -> None:
    with pytest.raises(UpstreamError, match="SHA-256"):
        fetch.ensure(root, "sdist", replace(pin, sdist_sha256="0" * 64), say)
    assert not list(root.iterdir())


@pytest.mark.parametrize("name", ["../evil", "vllm-0.22.1/../../evil", "/evil", "vllm-0.22.1/link", "C:\\evil"])
def test_an_archive_that_reaches_out_is_refused(name: str, tmp_path: Path, pin: Pin, say: Console) -> None:
    info = tarfile.TarInfo(name)
    info.size = 1
    if name.endswith("link"):
        info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc", 0
    bad = archive(tmp_path / "bad.tar.gz", info)
    pin = replace(pin, sdist_sha256=hashlib.sha256(bad.read_bytes()).hexdigest())
    with pytest.raises(UpstreamError, match="no plain file"):
        fetch.unpack(bad, tmp_path / "out" / "tree", pin, say)
    assert not (tmp_path / "evil").exists() and not (tmp_path / "out" / "evil").exists()


def test_without_unearth_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Console
) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    with pytest.raises(UpstreamError, match="unearth"):
        fetch.download_sdist(tmp_path, PIN, say)


def test_an_unknown_source_is_named(root: Path, say: Console) -> None:
    with pytest.raises(UpstreamError, match="choose one of auto, git, sdist"):
        fetch.ensure(root, "ftp", PIN, say)
