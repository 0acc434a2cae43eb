"""Takes ``starter.py`` files, and nothing else, out of folders, zips and git bundles that nobody has looked at."""

import datetime as dt
import os
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

from course.grade.processes import lower_limits
from course.labs import Lab, LabError
from course.loop.follow import followed

MAX_ENTRIES, MAX_PROBLEMS, MAX_ZIP = 50_000, 10, 256 << 20
GIT_SECONDS, GIT_BYTES, GIT_MEMORY, GIT_TALK = 60, 512 << 20, 2 << 30, 16 << 20
PACKED = (".zip", ".bundle")


@dataclass
class Submission:
    """``files`` maps a lab's key to the bytes of its starter.py, ``problems`` says what was left out and why."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    when: dt.datetime | None = None


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
    if not made.files and not made.problems:
        made.problems.append("holds no labs/**/starter.py")
    return made


def _collect(made: Submission, entries: Iterator[_Entry], labs: Sequence[Lab], limit: int) -> None:
    taken: dict[str, str] = {}
    for count, entry in enumerate(entries):
        if count > MAX_ENTRIES:
            made.problems.append(f"more than {MAX_ENTRIES} entries: the rest is not read")
            return
        if len(made.problems) >= MAX_PROBLEMS:
            made.problems.append("and more: the rest is not read")
            return
        lab = lab_of_entry(entry.path, labs)
        if lab is None:
            continue
        if lab.key in taken:
            made.problems.append(f"{entry.path}: a second file for lab {lab.name}; {taken[lab.key]} is taken")
        elif not entry.regular:
            made.problems.append(f"{entry.path}: not a regular file (a symbolic link?), left out")
        elif entry.size > limit:
            made.problems.append(f"{entry.path}: {entry.size} bytes, allowed are {limit}; left out")
        else:
            data = entry.read()
            if len(data) > limit:
                made.problems.append(f"{entry.path}: larger than it claims, left out")
                continue
            taken[lab.key] = entry.path
            made.files[lab.key] = followed(data)


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
