"""Puts the pinned release into ``upstream/``: from its git tag, or from its source distribution.

Either way the content is checked (commit, or SHA-256 of the archive) before it takes its place in one rename, so a
broken attempt leaves nothing behind. A stamp in the tree says what it is; a later run compares file names and sizes
with it, and mends a tree that was damaged."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import track

from course.labs import ROOT
from course.loop.record import read_json, set_aside

STAMP = ".course-pin.json"
SOURCES = ("auto", "git", "sdist")


@dataclass(frozen=True)
class Pin:
    """The release that the course is written against."""

    version: str = "0.22.1"
    tag: str = "v0.22.1"
    commit: str = "0decac0d96c42b49572498019f0a0e3600f50398"
    sdist_sha256: str = "cd34902729f3767e3dfbb391956b2986bc638a54be9893e78bda9cc55669f15c"
    repository: str = "https://github.com/vllm-project/vllm.git"


PIN = Pin()


class UpstreamError(Exception):
    """The pinned tree cannot be had; the text says why and what to do."""


class Unreachable(UpstreamError):
    """A source that does not answer, so that another one may be tried."""


def ensure(root: Path = ROOT, source: str = "auto", pin: Pin = PIN, console: Console | None = None) -> str:
    """Makes ``root/upstream`` the pinned tree: ``kept``, ``git`` or ``sdist``; else :class:`UpstreamError`."""
    say = console or Console(stderr=True)
    if source not in SOURCES:
        raise UpstreamError(f"--source {source!r}: choose one of {', '.join(SOURCES)}")
    target = root / "upstream"
    state = inspect(target, pin)
    if state == "":
        say.print(f"upstream/ holds vLLM {pin.tag} already; nothing to do.")
        return "kept"
    if target.is_symlink() or target.exists():
        say.print(f"upstream/ {state}; fetching it anew.")
    with tempfile.TemporaryDirectory(prefix=".upstream-", dir=root) as temp:
        tree, used = _fetch(Path(temp), source, pin, say)
        facts = {"version": pin.version, "commit": pin.commit, "source": used, "files": manifest(tree)}
        (tree / STAMP).write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")
        _put(tree, target, say)
    say.print(f"[green]upstream/ now holds vLLM {pin.tag}[/] ({used}, {len(manifest(target))} files).")
    return used


def inspect(tree: Path, pin: Pin = PIN) -> str:
    """ "" where the tree is the pinned one and whole, else what is wrong with it."""
    if not tree.is_dir():
        return "is absent"
    if tree.is_symlink():
        return "" if (tree / "vllm" / "v1").is_dir() else "is a link to something else"
    stamp = read_json(tree / STAMP)
    if not stamp:
        changes = _git("-C", str(tree), "status", "--porcelain", "-uno").stdout.strip()
        return "" if _head(tree) == pin.commit and not changes else "was not made by this command"
    if stamp.get("commit") != pin.commit:
        return f"holds vLLM {stamp.get('version')}, not {pin.version}"
    have, want = manifest(tree), stamp.get("files", {})
    if have == want:
        return ""
    return f"is damaged: {sum(have.get(k) != v for k, v in want.items()) + len(have.keys() - want.keys())} files differ"


def manifest(tree: Path) -> dict[str, int]:
    """Relative name -> size of every file, without git's own and caches."""
    found = {}
    for folder, names, files in os.walk(tree):
        names[:] = [n for n in names if n not in (".git", "__pycache__")]
        for name in files:
            path = Path(folder, name)
            if name != STAMP and not path.is_symlink():
                found[path.relative_to(tree).as_posix()] = path.stat().st_size
    return found


def _put(tree: Path, target: Path, say: Console) -> None:
    """Moves the new tree into place; an old one that is not ours is kept under ``.course/``."""
    if target.is_symlink():
        target.unlink()
    elif target.exists() and not read_json(target / STAMP):
        place = set_aside(target, "upstream-before")
        say.print(f"The folder that was there is kept in .course/{place.name}.")
    elif target.exists():
        target.rename(tree.parent / "old")
    tree.rename(target)


def _fetch(temp: Path, source: str, pin: Pin, say: Console) -> tuple[Path, str]:
    if source in ("auto", "git"):
        try:
            return from_git(temp, pin, say), "git"
        except Unreachable as error:
            if source == "git":
                raise
            say.print(f"{error} Trying the source distribution of the release.")
    archive = download_sdist(temp, pin, say)
    return unpack(archive, temp / "tree", pin, say), "sdist"


def from_git(temp: Path, pin: Pin = PIN, console: Console | None = None) -> Path:
    """Clones the tag and checks its commit. Raises :class:`Unreachable` where git or the repository is not there."""
    say = console or Console(stderr=True)
    if shutil.which("git") is None:
        raise Unreachable("git is not installed.")
    tree = temp / "tree"
    if _git("ls-remote", "--exit-code", pin.repository, f"refs/tags/{pin.tag}", timeout=30).returncode:
        raise Unreachable("The git repository of vLLM does not answer.")
    with say.status(f"git: cloning the tag {pin.tag} (about 100 MB)"):
        options = ("-c", "advice.detachedHead=false", "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")
        done = _git(*options, "clone", "--depth", "1", "--branch", pin.tag, pin.repository, str(tree), timeout=1800)
    if done.returncode:
        raise Unreachable("git could not clone the tag.")
    if (head := _head(tree)) != pin.commit:
        what = f"the tag {pin.tag} points at commit {head}, the course is pinned at {pin.commit}"
        raise UpstreamError(f"{what}; nothing was changed")
    return tree


def _git(*args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(["git", *args], capture_output=True, text=True, timeout=timeout, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(args, 1, "", str(error))


def _head(tree: Path) -> str:
    return _git("-C", str(tree), "rev-parse", "HEAD").stdout.strip() if (tree / ".git").exists() else ""


def download_sdist(temp: Path, pin: Pin, say: Console) -> Path:
    """Downloads the source distribution without building it. Raises :class:`UpstreamError`."""
    if find_spec("unearth") is None:
        lacks = 'the source distribution needs the package unearth: pip install -e ".[test]"'
        raise UpstreamError(f"{lacks}, then try again")
    command = [sys.executable, "-m", "unearth", f"vllm=={pin.version}", "--no-binary", "--download", str(temp)]
    if index := os.environ.get("PIP_INDEX_URL"):
        command += ["--index-url", index]
    with say.status(f"downloading the source distribution of vLLM {pin.version} (36 MB)"):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        except subprocess.TimeoutExpired:
            raise UpstreamError("the download took longer than half an hour; try again") from None
    archives = sorted(temp.glob("*.tar.gz"))
    if done.returncode or not archives:
        raise UpstreamError("the package index does not answer, or lacks the release; check the network and try again")
    return archives[0]


def unpack(archive: Path, tree: Path, pin: Pin = PIN, console: Console | None = None) -> Path:
    """Checks the archive's digest and unpacks what is under its one top folder. Raises :class:`UpstreamError`."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != pin.sdist_sha256:
        raise UpstreamError(f"the archive's SHA-256 is {digest}, expected {pin.sdist_sha256}; nothing was unpacked")
    tree.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in track(tar.getmembers(), "unpacking", console=console or Console(stderr=True), transient=True):
            if name := safe_name(member):
                _extract(tar, member, tree / name)
    return tree


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None
    with source, place.open("wb") as out:
        shutil.copyfileobj(source, out)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def safe_name(member: tarfile.TarInfo) -> str:
    """The path below the archive's top folder, "" for the top. Raises :class:`UpstreamError` for one that escapes."""
    parts = PurePosixPath(member.name).parts
    risky = member.name.startswith("/") or ".." in parts or "\\" in member.name or ":" in member.name
    if risky or not (member.isfile() or member.isdir()):
        what = f"the archive holds {member.name!r}, which is no plain file below its folder"
        raise UpstreamError(f"{what}; nothing was changed")
    return "/".join(parts[1:])
