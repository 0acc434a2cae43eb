"""Git for `course reset` and `course update`: a starter.py's original, and a newer course under a learner's work."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from course.labs import NOTHING, ROOT, LabError, functions, parsed, short, stub_message
from course.loop.outcomes import digest
from course.loop.record import keep

MAX_COMMITS = 200


class GitError(LabError):
    """Git said no; the text is what it said, or what to do."""


def git(root: Path, *args: str) -> str:
    """Runs git in ``root`` and returns what it prints. Raises :class:`GitError`."""
    if shutil.which("git") is None:
        raise GitError("git is not installed")
    command = ["git", "-C", str(root), "-c", "core.quotePath=false", "-c", "merge.autoStash=false", *args]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise GitError(f"git {args[0]} failed: {said or done.returncode}")
    return done.stdout.decode("utf-8", errors="surrogateescape")


def need_clone(root: Path) -> None:
    """Raises :class:`GitError` where ``root`` is not the root of a clone."""
    if not (root / ".git").exists():
        raise GitError(
            "this folder has no git history of its own (a downloaded archive?): clone the course, then copy your "
            "starter.py files into the clone"
        )
    git(root, "rev-parse", "--git-dir")


def original(starter: Path, root: Path = ROOT) -> bytes:
    """The newest committed ``starter.py`` in which nothing was written yet. Raises :class:`GitError` without one."""
    need_clone(root)
    name = starter.relative_to(root).as_posix()
    solution = starter.with_name("solution.py").read_bytes()
    for version in _versions(root, name):
        if _untouched(text := version.encode("utf-8", errors="surrogateescape"), solution):
            return text
    raise GitError(f"no commit holds {short(starter)} without work in it; `git log -- {name}` lists its versions")


def _versions(root: Path, name: str) -> Iterator[str]:
    """The committed texts of a file, newest first."""
    for commit in git(root, "log", f"-{MAX_COMMITS}", "--format=%H", "--", name).split():
        with suppress(GitError):  # this commit removed it
            yield git(root, "show", f"{commit}:{name}")


def _untouched(starter: bytes, solution: bytes) -> bool:
    """Whether every function is a stub or the reference's own, and some are stubs."""
    mine, theirs = (dict(functions(parsed(text) or NOTHING)) for text in (starter, solution))
    written = [name for name, node in mine.items() if stub_message(node) is None]
    return len(written) < len(mine) and all(n in theirs and ast.dump(mine[n]) == ast.dump(theirs[n]) for n in written)


def reset(starter: Path, root: Path = ROOT) -> Path | None:
    """Puts the original in its place; returns the copy of what was there, None where that was the original."""
    text = original(starter, root)
    if starter.is_file() and starter.read_bytes().replace(b"\r\n", b"\n") == text:
        return None
    copy = keep(starter, root) if starter.is_file() else None
    starter.write_bytes(text)
    return copy


def former(root: Path, name: str, wanted: str) -> str | None:
    """The committed text of a file whose ``digest`` is ``wanted``, newest first; None where the history has none."""
    with suppress(GitError):
        need_clone(root)
        texts = (text.replace("\r\n", "\n") for text in _versions(root, name))
        return next((text for text in texts if digest(text) == wanted), None)
    return None


@dataclass
class Updated:
    """What an update did: commits before and after, starters that stayed the learner's though the course changed
    them, sentences about labs that moved, labs whose tests changed, whether the dependencies did."""

    before: str
    after: str
    stayed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    install: bool = False


def update(root: Path = ROOT, source: str = "") -> Updated:
    """Takes a newer course from ``source`` (``REMOTE/BRANCH``; left out: what the branch follows) into a clone. Every
    edited ``starter.py`` stays byte for byte, committed or not. Raises :class:`GitError`, with nothing changed, where
    something else that was edited would be overwritten."""
    need_clone(root)
    if any((root / git(root, "rev-parse", "--git-path", n).strip()).exists() for n in ("MERGE_HEAD", "rebase-merge")):
        raise GitError("a merge or a rebase is under way: finish it first, `git status` says how")
    target = _fetch(root, source)
    before = git(root, "rev-parse", "HEAD").strip()
    try:
        base = git(root, "merge-base", "HEAD", target).strip()
    except GitError:
        raise GitError("your clone and the course share no commit; if it is shallow: git fetch --unshallow") from None
    if base == target:
        return Updated(before, before)
    incoming = _names(git(root, "diff", "--no-renames", "--name-only", "-z", base, target))
    edited = _names(git(root, "diff", "--no-renames", "--name-only", "-z", base))  # committed since, or not
    loose = set(_names(git(root, "diff", "--no-renames", "--name-only", "-z", "HEAD")))
    clash = [name for name in incoming if name in edited]
    if other := [name for name in clash if name in loose and not name.endswith("/starter.py")]:
        raise GitError(
            f"the update changes files that you changed too: {', '.join(other)}. Undo your change "
            f"(`git checkout HEAD -- {other[0]}`) or commit it, then run `course update` again. Nothing was changed."
        )
    strange = set(_names(git(root, "ls-files", "--others", "-z")))
    if in_the_way := [name for name in incoming if name in strange]:
        raise GitError(
            f"the update brings files that stand here already, unknown to git: {', '.join(in_the_way)}. Move them "
            "away, then run `course update` again. Nothing was changed."
        )
    mine = [name for name in clash if name.endswith("/starter.py") and (root / name).is_file()]
    with _set_aside(root, mine, loose):
        _merge(root, base == before, target, mine)
    parts = _names(git(root, "diff", "-M", "--name-status", "--diff-filter=R", "-z", base, target))
    renames = {parts[i + 1]: parts[i + 2] for i in range(0, len(parts) - 2, 3)}
    moved = {name: move for name in mine if (move := _follow(root, name, renames))}
    tests = [Path(n).parent.as_posix() for n in incoming if n.endswith("/test_lab.py") and (root / n).is_file()]
    after = git(root, "rev-parse", "HEAD").strip()
    stayed = [name for name in mine if name not in moved]
    return Updated(before, after, stayed, list(moved.values()), tests, "pyproject.toml" in incoming)


def _names(text: str) -> list[str]:
    return [name for name in text.split("\0") if name]


def _fetch(root: Path, source: str) -> str:
    remotes = git(root, "remote").split()
    if not remotes:
        raise GitError("this clone knows no remote: tell it where the course is with `git remote add origin URL`")
    if source:
        remote, _, branch = source.partition("/")
        if remote not in remotes or not branch:
            raise GitError(f"{source!r} is not REMOTE/BRANCH; remotes here: {', '.join(remotes)}")
    else:
        try:
            remote, _, branch = git(root, "rev-parse", "--abbrev-ref", "@{u}").strip().partition("/")
        except GitError:
            loose = git(root, "rev-parse", "--abbrev-ref", "HEAD").strip() == "HEAD"
            what = "this branch follows no branch of a remote: "
            if loose:
                what = "you are on no branch (a detached HEAD): go back with `git switch main`, or "
            raise GitError(f"{what}name what to take, for example `course update --source {remotes[0]}/main`") from None
    try:
        git(root, "fetch", "--quiet", remote, branch)
    except GitError as error:
        where = git(root, "remote", "get-url", remote).strip()
        raise GitError(f"{remote} ({where}) gives no {branch}; nothing was changed. {error}") from None
    return git(root, "rev-parse", "FETCH_HEAD").strip()


@contextmanager
def _set_aside(root: Path, names: list[str], loose: set[str]) -> Iterator[None]:
    """The learner's files are out of the way of a merge, and come back whatever happens; copies stay."""
    texts = {name: (root / name).read_bytes() for name in names}
    for name in names:
        keep(root / name, root)
    try:
        for name in names:
            if name in loose:
                git(root, "checkout", "--quiet", "HEAD", "--", name)
        yield
    finally:
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text)


def _merge(root: Path, forward: bool, target: str, mine: list[str]) -> None:
    """Fast-forwards, or merges: a conflict in her starters goes her way, any other undoes the merge."""
    if forward:
        git(root, "merge", "--quiet", "--ff-only", target)
        return
    try:
        git(root, "merge", "--quiet", "--no-commit", "--no-ff", target)
    except GitError as error:
        rest = [n for n in _names(git(root, "diff", "--name-only", "--diff-filter=U", "-z")) if n not in mine]
        merging = (root / git(root, "rev-parse", "--git-path", "MERGE_HEAD").strip()).exists()
        if rest or not merging:
            if merging:
                git(root, "merge", "--abort")
            what = f"your commits and the update both change {', '.join(rest)}" if rest else str(error)
            raise GitError(f"{what}. Nothing was changed; merge by hand with `git merge {target[:12]}`.") from None
    try:
        for name in mine:
            if git(root, "ls-tree", "--name-only", "HEAD", "--", name):
                git(root, "checkout", "--quiet", "HEAD", "--", name)
        git(root, "commit", "--quiet", "--no-edit", "--no-verify")
    except GitError:
        git(root, "merge", "--abort")
        raise


def _follow(root: Path, name: str, renames: dict[str, str]) -> str:
    """Where the lab of a starter was renamed or dropped, the learner's file goes along; says so."""
    if (root / name).with_name("test_lab.py").exists():
        return ""
    old, to = root / name, renames.get(name)
    if to is None:
        copy = keep(old, root)
        old.unlink()
        return f"{name}: the lab is gone; your file is in {copy.relative_to(root).as_posix()}"
    (root / to).write_bytes(old.read_bytes())
    old.unlink()
    if not any(old.parent.iterdir()):
        old.parent.rmdir()
    return f"{name} is now {to}, with your work"
