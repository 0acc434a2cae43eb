"""Another release of vLLM to compare with: a folder, or a version that is fetched once into ``.course/releases/``."""

import hashlib
import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from course.labs import ROOT
from course.upstream import fetch
from course.upstream.fetch import PIN, Pin, UpstreamError

_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)*(?:[a-z.]+\d+)*)")
_COMMIT = re.compile(r"__commit_id__\s*=\s*commit_id\s*=\s*['\"]g?([0-9a-f]+)|__commit_id__\s*=\s*['\"]g?([0-9a-f]+)")
_FACTS = ".course-release.json"


@dataclass(frozen=True)
class Release:
    """A tree of vLLM. ``commit`` and ``sdist_sha256`` are "" where they are not known; a commit may be shortened."""

    name: str
    tree: Path
    commit: str = ""
    sdist_sha256: str = ""


def release(what: str, root: Path = ROOT, console: Console | None = None, pin: Pin = PIN) -> Release:
    """A folder that holds ``vllm/``, or a version, fetched once and kept. Raises :class:`UpstreamError`."""
    folder = Path(what).expanduser()
    if folder.is_dir():
        if not (folder / "vllm").is_dir():
            raise UpstreamError(f"{what} is no tree of vLLM: it holds no folder vllm/")
        return Release(folder.resolve().name, folder.resolve(), _commit(folder))
    match = _VERSION.fullmatch(what)
    if match is None:
        raise UpstreamError(f"{what!r} is neither a folder nor a version such as {pin.version}")
    target = root / ".course" / "releases" / match[1]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(replace(pin, version=match[1], tag=f"v{match[1]}"), target, console or Console(stderr=True))
    facts = json.loads((target / _FACTS).read_text(encoding="utf-8"))
    return Release(match[1], target, facts["commit"], facts["sdist_sha256"])


def _fetch(wanted: Pin, target: Path, say: Console) -> None:
    """Puts the release's source distribution into ``target`` in one rename, with what is known of it."""
    with tempfile.TemporaryDirectory(prefix=".release-", dir=target.parent) as folder:
        archive = fetch.download_sdist(Path(folder), wanted, say)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        tree = fetch.unpack(archive, Path(folder) / "tree", replace(wanted, sdist_sha256=digest), say)
        facts = {"commit": _commit(tree), "sdist_sha256": digest}
        (tree / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        tree.rename(target)


def _commit(tree: Path) -> str:
    """What git or the file that the build wrote says."""
    if head := fetch._head(tree):
        return head
    path = tree / "vllm" / "_version.py"
    match = _COMMIT.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return (match[1] or match[2]) if match else ""
