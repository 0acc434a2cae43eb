"""Takes ``starter.py`` files, and nothing else, out of folders, zips and git bundles that nobody has looked at.

Which of several files a learner means, no order of names decides: where two differ, or one is only nearly called as it
must be, a human does. An untouched starter beside another file does not count."""

import datetime as dt
import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from course.grade.kernel import lower_limits
from course.labs import Lab, LabError

MAX_ENTRIES, MAX_PROBLEMS, MAX_ZIP = 50_000, 10, 256 << 20
GIT_SECONDS, GIT_BYTES, GIT_MEMORY, GIT_TALK = 60, 512 << 20, 2 << 30, 16 << 20
PACKED, COPIES = (".zip", ".bundle"), 8
_NEARLY = re.compile(r"starter\b.*|.*\bstarter\.py.*|starter[\W_].*", re.I)


@dataclass
class Submission:
    """``files`` maps a lab's key to the bytes of its starter.py, ``unclear`` to files (path -> bytes) of which a human
    must choose one, with a sentence; ``problems`` says what was left out and why."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    when: dt.datetime | None = None
    unclear: dict[str, tuple[str, dict[str, bytes]]] = field(default_factory=dict)

    def take(self, key: str, accepted: Sequence[str]) -> tuple[bytes | None, list[str]]:
        """A lab's file, or why a human must choose one first. ``accepted``: marks of files that somebody has read."""
        sentence, some = self.unclear.get(key, ("", {}))
        read = [data for data in some.values() if mark(data) in accepted]
        if not some or len(set(read)) == 1:
            return (read[0] if read else self.files.get(key)), []
        told = [f"{path}: to take this one: accepted = [{mark(data)!r}]" for path, data in sorted(some.items())]
        return None, [sentence, *told]


def mark(text: bytes) -> str:
    """What an instructor writes into ``accepted`` to have this very file run, whatever it says. 160 bits: of a
    shorter one somebody makes two files, a harmless one to be read and another to be run."""
    return hashlib.sha256(text).hexdigest()[:40]


@dataclass(frozen=True)
class _Entry:
    path: str
    size: int
    regular: bool
    read: Callable[[], bytes]


def take_in(source: Path, labs: Sequence[Lab], limit: int) -> list[Submission]:
    """Every submission under ``source`` (a folder of them, or a single one), by name; ``limit`` in bytes per file."""
    if not (source.is_file() or source.is_dir()):
        raise LabError(f"{source} does not exist: name a folder of submissions, a zip or a bundle")
    if not (found := [_take_one(path, labs, limit) for path in _paths(source)]):
        raise LabError(f"{source} holds no submission: expected folders, zips or bundles in it")
    seen: set[str] = set()
    for submission in found:
        stem, count = submission.name, 2
        while submission.name in seen:
            submission.name, count = f"{stem} ({count})", count + 1
        seen.add(submission.name)
    return found


def _paths(source: Path) -> list[Path]:
    one = source.is_file() or (source / "labs").is_dir() or any(source.glob("phase-[0-9][0-9]-*"))
    if one or any(p.name.startswith("lab-") and p.is_dir() for p in source.iterdir()):
        return [source]
    kept = [p for p in source.iterdir() if not p.name.startswith(".")]
    return sorted(p for p in kept if p.is_symlink() or p.is_dir() or p.suffix in PACKED)


def _take_one(path: Path, labs: Sequence[Lab], limit: int) -> Submission:
    packed = path.suffix in PACKED and not path.is_dir()
    name = path.stem if packed else path.resolve().name if path.name in ("", ".", "..") else path.name
    made = Submission("".join(c if c.isprintable() else "?" for c in name))
    if (link := path.is_symlink()) or not (path.is_file() or path.is_dir()):
        made.problems.append(f"is {'a symbolic link: not followed' if link else 'no file and no folder: not opened'}")
        return made
    try:
        if path.suffix == ".zip" and packed:
            _look_at_zip(path)
            with zipfile.ZipFile(path) as archive:
                _collect(made, _of_zip(archive, limit), labs, limit)
        elif packed:
            with tempfile.TemporaryDirectory() as temp:
                made.when = _open_bundle(path.resolve(), Path(temp))
                _collect(made, _of_bundle(Path(temp)), labs, limit)
        else:
            _collect(made, _of_folder(path, limit), labs, limit)
    except Exception as error:  # whatever a damaged or hostile file makes a library say, it is this submission's own
        made.problems.append(f"cannot be read: {str(error) or type(error).__name__}")
    if not made.files and not made.problems and not made.unclear:
        made.problems.append("holds no labs/**/starter.py")
    return made


def _collect(made: Submission, entries: Iterator[_Entry], labs: Sequence[Lab], limit: int) -> None:
    found: dict[Lab, dict[str, bytes]] = {}
    nearly: dict[Lab, dict[str, bytes]] = {}
    for count, entry in enumerate(entries):
        if count > MAX_ENTRIES:
            made.problems.append(f"more than {MAX_ENTRIES} entries: the rest is not read")
            break
        if len(made.problems) >= MAX_PROBLEMS:
            made.problems.append("and more: the rest is not read")
            break
        lab = lab_of_entry(entry.path, labs)
        if (which := lab or _nearly(entry.path, labs)) is None:
            continue
        mine = (found if lab else nearly).setdefault(which, {})
        if len(mine) >= COPIES:
            made.problems.append(f"{entry.path}: more than {COPIES} files for lab {which.name}: not read")
        elif not entry.regular:
            made.problems += [f"{entry.path}: not a regular file (a symbolic link?), left out"] if lab else []
        elif entry.size > limit:
            made.problems.append(f"{entry.path}: {entry.size} bytes, allowed are {limit}; left out")
        elif len(data := entry.read()) > limit:
            made.problems.append(f"{entry.path}: larger than it claims, left out")
        else:
            mine[entry.path] = data
    for one in {**found, **nearly}:
        _choose(made, one, found.get(one, {}), nearly.get(one, {}))


def _choose(made: Submission, lab: Lab, found: dict[str, bytes], nearly: dict[str, bytes]) -> None:
    """The file that a learner means, where that is clear."""
    start = lab.folder / "starter.py"
    untouched = _plain(start.read_bytes()) if start.is_file() else None
    own = {path: data for path, data in found.items() if _plain(data) != untouched}
    other = {path: data for path, data in nearly.items() if _plain(data) != untouched}
    if len({_plain(data) for data in own.values()}) > 1:
        made.unclear[lab.key] = f"{len(own)} files for this lab differ, and none was graded", own
    elif not own and other:
        made.unclear[lab.key] = "a file is nearly called as it must be (starter.py, in the lab's folder)", other
    elif found:
        made.files[lab.key] = next(iter((own or found).values()))
        made.problems += [f"{path}: not called as it must be, and not read" for path in sorted(other) if own]


def _plain(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").rstrip()


def _nearly(path: str, labs: Sequence[Lab]) -> Lab | None:
    """The lab for which a file is meant that bears another name, or lies in a folder of nearly the lab's name."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    if len(parts) < 2 or ".." in parts or path.startswith("/") or not _NEARLY.fullmatch(parts[-1]):
        return None
    if not re.search(r"\.(py|txt)\W*$", parts[-1], re.I):
        return None
    folder = re.sub(r"[^a-z0-9]+", "-", parts[-2].lower())
    phases = [part.lower() for part in parts if part.lower().startswith("phase-")][-1:]
    fits = [lab for lab in labs if folder.startswith(lab.slug) and lab.phase in (phases or [lab.phase])]
    return max(fits, key=lambda lab: len(lab.slug), default=None)


def lab_of_entry(path: str, labs: Sequence[Lab]) -> Lab | None:
    """The lab whose starter.py stands at ``path``; the phase's folder may be missing, where present it must agree."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    if len(parts) < 2 or parts[-1] != "starter.py" or ".." in parts or path.startswith("/"):
        return None
    phases = [part for part in parts if part.startswith("phase-")]
    return next((lab for lab in labs if lab.slug == parts[-2] and lab.phase in (phases[-1:] or [lab.phase])), None)


def _of_folder(root: Path, limit: int) -> Iterator[_Entry]:
    for at, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("node_modules", "upstream"))
        linked = [f for f in folders if f.startswith(("lab-", "phase-")) and Path(at, f).is_symlink()]
        for name in sorted(names):
            yield _file_entry(Path(at, name), root, limit)
        for name in linked:
            yield _Entry(Path(at, name, "starter.py").relative_to(root).as_posix(), 0, False, bytes)


def _file_entry(path: Path, root: Path, limit: int) -> _Entry:
    info = path.lstat()

    def read() -> bytes:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            return file.read(limit + 1)

    return _Entry(path.relative_to(root).as_posix(), info.st_size, stat.S_ISREG(info.st_mode), read)


def _look_at_zip(path: Path) -> None:
    """Refuses an archive whose list of files alone would fill the memory."""
    if path.stat().st_size > MAX_ZIP:
        raise LabError(f"larger than {MAX_ZIP >> 20} MiB: hand in the starter.py files alone")
    with path.open("rb") as file:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end and end[zipfile._ECD_ENTRIES_TOTAL] > 4 * MAX_ENTRIES:  # type: ignore[attr-defined]
        raise LabError(f"{end[zipfile._ECD_ENTRIES_TOTAL]} entries")  # type: ignore[attr-defined]


def _of_zip(archive: zipfile.ZipFile, limit: int) -> Iterator[_Entry]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        regular = not info.is_dir() and (stat.S_IFMT(mode) in (0, stat.S_IFREG)) and not info.flag_bits & 1

        def read(info: zipfile.ZipInfo = info) -> bytes:
            with archive.open(info) as file:
                return file.read(limit + 1)

        yield _Entry(info.filename, info.file_size, regular, read)


def _git(temp: Path, *args: str, most: int = GIT_TALK) -> bytes:
    """What a git command prints, up to ``most`` bytes; bounded in time, memory and the size of what it writes."""

    def bound() -> None:
        import resource

        lower_limits({resource.RLIMIT_FSIZE: GIT_BYTES, resource.RLIMIT_CPU: GIT_SECONDS})
        if sys.platform == "linux":  # elsewhere this limit may not be set, or may mean something else
            lower_limits({resource.RLIMIT_AS: GIT_MEMORY})

    env = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(temp), "LC_ALL": "C"}
    fixed = {"core.hooksPath": os.devnull, "safe.directory": str(temp), "pack.threads": "1", "gc.auto": "0"}
    settings = [word for key, value in fixed.items() for word in ("-c", f"{key}={value}")]
    command = ["git", *settings, "-C", str(temp), *args]
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=said, preexec_fn=bound)
        except FileNotFoundError:
            raise LabError("git is not installed") from None
        timer = threading.Timer(2 * GIT_SECONDS, process.kill)
        timer.start()
        with process:
            assert process.stdout is not None
            text = process.stdout.read(most + 1)
            if len(text) > most:
                process.kill()
        timer.cancel()
        said.seek(0)
        if len(text) > most:
            raise LabError(f"git {args[0]}: more than {most >> 20} MiB of output: too many files")
        if process.returncode:
            raise LabError(f"git {args[0]}: {said.read(4096).decode(errors='replace').strip()[-200:]}")
    return text


def _open_bundle(bundle: Path, temp: Path) -> dt.datetime:
    """Fetches the bundle's HEAD (else its first branch) into a bare repository; returns the commit's own time."""
    _git(temp, "init", "-q", "--bare", ".")
    heads = [line.split(" ", 1)[1] for line in _git(temp, "bundle", "list-heads", str(bundle)).decode().splitlines()]
    if not heads:
        raise LabError("the bundle has no branch")
    wanted = "HEAD" if "HEAD" in heads else heads[0]
    _git(temp, "fetch", "-q", "--no-tags", str(bundle), f"+{wanted}:refs/heads/submission")
    seconds = int(_git(temp, "log", "-1", "--format=%ct", "submission"))
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)


def _of_bundle(temp: Path) -> Iterator[_Entry]:
    for row in _git(temp, "ls-tree", "-r", "-l", "-z", "submission").decode(errors="replace").split("\0"):
        head, _, path = row.partition("\t")
        if not path:
            continue
        mode, kind, sha, size = head.split()
        read, regular = partial(_git, temp, "cat-file", "blob", sha), kind == "blob" and mode.startswith("100")
        yield _Entry(path, int(size) if size.isdigit() else 0, regular, read)
