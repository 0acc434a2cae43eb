"""`course build NN`: a copy of the engine in which what phase NN teaches is still to be written.

``workspace/mini_vllm`` is a copy of ``mini_vllm``; the functions that ``build.toml`` lists for the phase keep
signature and docstring and raise NotImplementedError with what to do. ``course build NN --test`` runs
the tests that prove them, on the copy. What was written in a workspace of an earlier phase comes along."""

import ast
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.contract.warm import environment
from course.labs import COURSE, ROOT, LabError, functions, tomllib
from course.loop.outcomes import digest
from course.loop.record import read_json, set_aside
from course.workspace.carry import Carried, carry

TABLE = COURSE / "build.toml"
RECORD = "build.json"
REPLAYED = (
    "__init__", "bench.json", "packed", "replay", "draft_w", "gram", "group_w", "lora_w", "lora_r", "scheduler_w",
    "scheduler-t", "scheduler-d", "scheduler-l", "scheduler-c", "scheduler-m", "connector_w", "media_w", "offload",
)  # fmt: skip
PYTEST = COURSE / "workspace" / "settings.ini"
CONFTEST = 'pytest_plugins = ["course.workspace"]  # made by `course build`: short reports for what is not written\n'


@dataclass(frozen=True)
class Build:
    """One function to write: where it is, what to do, which tests prove it."""

    symbol: str
    message: str
    tests: tuple[str, ...]

    @property
    def file(self) -> Path:
        """Path below the repository."""
        return Path(*self.symbol.partition(":")[0].split(".")).with_suffix(".py")

    @property
    def name(self) -> str:
        return self.symbol.partition(":")[2]


@dataclass(frozen=True)
class PhaseBuild:
    """What one phase builds."""

    number: int
    title: str
    builds: tuple[Build, ...]

    @property
    def tests(self) -> list[str]:
        """All tests of the phase, each once, in order."""
        return list(dict.fromkeys(test for build in self.builds for test in build.tests))


@functools.cache
def phase_builds() -> dict[int, PhaseBuild]:
    """The table, by phase number."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    made = {}
    for key, row in sorted(rows.items()):
        builds = tuple(Build(b["symbol"], b["message"], tuple(b["tests"])) for b in row["builds"])
        made[int(key[6:])] = PhaseBuild(int(key[6:]), row["title"], builds)
    return made


def phase_build(number: int) -> PhaseBuild:
    """The row of a phase. Raises :class:`LabError` naming those that exist."""
    if number not in phase_builds():
        have = ", ".join(f"{n:02d} ({p.title})" for n, p in phase_builds().items())
        raise LabError(f"phase {number:02d} has no mini-build; there are: {have}")
    return phase_builds()[number]


def stub(source: str, messages: dict[str, str]) -> str:
    """``source`` in which the functions named by ``messages`` (dotted) have lost their bodies; all else stays as it
    was, to the character. Raises :class:`LabError` where a name is not a function of the source."""
    found = dict(functions(ast.parse(source)))
    if missing := messages.keys() - found.keys():
        raise LabError(f"there is no function called {sorted(missing)[0]}")
    lines = source.splitlines(keepends=True)
    for name in sorted(messages, key=lambda n: found[n].lineno, reverse=True):
        node = found[name]
        documented = ast.get_docstring(node, clean=False) is not None
        start = node.body[0].end_lineno if documented else node.body[0].lineno - 1
        assert start is not None and node.end_lineno is not None
        indent = " " * node.body[0].col_offset
        text = json.dumps(messages[name], ensure_ascii=False)
        body = f"{indent}raise NotImplementedError({text})\n"
        if len(body) > 120:
            body = f"{indent}raise NotImplementedError(\n{indent}    {text}\n{indent})\n"
        lines[start : node.end_lineno] = [body]
    return "".join(lines)


def write_copy(target: Path, builds: tuple[Build, ...], root: Path = ROOT, files: dict[str, str] | None = None) -> None:
    """Puts a copy of ``root/mini_vllm`` with stubs, and pytest's settings, into ``target``; ``files`` (path -> source)
    take the place of the engine's own before the bodies are taken out."""
    shutil.copytree(root / "mini_vllm", target / "mini_vllm", ignore=_left_out)
    for name, source in (files or {}).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(source, encoding="utf-8")
    put_stubs(target, builds)
    shutil.copy(PYTEST, target / "pytest.ini")
    (target / "conftest.py").write_text(CONFTEST, encoding="utf-8")


def put_stubs(target: Path, builds: tuple[Build, ...]) -> list[Path]:
    """Takes the bodies of ``builds`` out of a copy; the files that it wrote."""
    files = sorted({build.file for build in builds})
    for file in files:
        path = target / file
        messages = {build.name: build.message for build in builds if build.file == file}
        path.write_text(stub(path.read_text(encoding="utf-8"), messages), encoding="utf-8")
    return [target / file for file in files]


def _left_out(folder: str, names: list[str]) -> list[str]:
    """Caches, and the recordings but for the one that is replayed."""
    return [n for n in names if n == "__pycache__" or (Path(folder).name == "golden" and not n.startswith(REPLAYED))]


@dataclass(frozen=True)
class Made:
    """Where an earlier workspace was put (None: there was no work in it), what of it was carried over."""

    kept: Path | None
    carried: Carried


def make_workspace(phase: PhaseBuild, root: Path = ROOT, force: bool = False) -> Made:
    """Makes ``workspace/`` for a phase. Work of an earlier phase is carried into it, and the old folder is kept. It is
    made beside, and takes its place when it is whole: whenever this is ended, nothing of hers is lost. Raises
    :class:`LabError` where the workspace there is of this phase or a later one and was edited, and ``force`` is not
    given; with ``force`` everything is the engine's again."""
    target, draft, old = root / "workspace", root / ".course" / "workspace-new", root / ".course" / "workspace-old"
    with _alone(root):
        if not target.exists() and (draft / RECORD).is_file():
            draft.rename(target)  # the last time it was ended just before this
        edited, record, carried, kept = edits(target), read_record(target), Carried(), None
        hers = sorted({*edited, *(record or {}).get("hers", [])})
        if hers and not force:
            carried = _earlier_work(target, record, hers, bool(edited), phase.number, root)
        loose = _loose(target, root)
        carried.left += [f"{path.as_posix()}: it is not Python" for path in loose]
        _fill(draft, phase, carried, root)
        if hers or loose:
            kept = set_aside(target, "workspace")
        elif target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        draft.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    return Made(kept, carried)


def _fill(draft: Path, phase: PhaseBuild, carried: Carried, root: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    write_copy(draft, phase.builds, root, carried.files)
    made = {p.relative_to(draft).as_posix(): digest(p) for p in _python_files(draft)}
    engine = {name: digest((root / name).read_text(encoding="utf-8")) for name in made if (root / name).is_file()}
    record = {"phase": phase.number, "files": made, "engine": engine, "hers": sorted(carried.files)}
    (draft / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """No second `course build` meanwhile; files that cannot be used are named. The lock goes with the process."""
    try:
        (root / ".course").mkdir(exist_ok=True)
        with (root / ".course" / "build.lock").open("w") as lock:
            with contextlib.suppress(ImportError):  # Windows
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        raise LabError("another `course build` is at work here; wait for its end") from None
    except OSError as error:
        raise LabError(f"{error.filename}: {error.strerror}; put that right and build again") from None


def _earlier_work(target: Path, record: dict | None, hers: list[str], edited: bool, number: int, root: Path) -> Carried:
    if record is None:
        raise LabError(unknown(root))
    if record["phase"] > number or (record["phase"] == number and edited):
        names = ", ".join(hers[:5]) + (" ..." if len(hers) > 5 else "")
        raise LabError(
            f"workspace/ holds work of yours ({names}); test it with `course build {record['phase']:02d} --test`, "
            "or start anew with --force, which keeps a copy under .course/"
        )
    taught: dict[str, list[str]] = {}
    for each, phase in phase_builds().items():
        for one in phase.builds if each <= record["phase"] and each < number else ():
            taught.setdefault(one.file.as_posix(), []).append(one.name)
    return carry(target, hers, taught, record["engine"], root)


def unknown(root: Path = ROOT) -> str:
    """What is said of a workspace without a record."""
    copies = sorted(f".course/{path.name}" for path in (root / ".course").glob("workspace-[0-9]*"))
    return (
        f"workspace/{RECORD} is missing or damaged, so it cannot be told what is yours; `course build NN --force` "
        "puts all of workspace/ under .course/ and starts anew"
        + (f". Copies of former workspaces: {', '.join(copies)}" if copies else "")
    )


def _python_files(target: Path) -> list[Path]:
    return sorted(p for p in target.rglob("*.py") if "__pycache__" not in p.parts)


def _loose(target: Path, root: Path) -> list[Path]:
    """Files beside the Python files that neither the engine nor this command put there: notes, results."""
    caches = {"__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache", ".mypy_cache"}
    made = {RECORD, "pytest.ini"}
    files = (p.relative_to(target) for p in target.rglob("*") if p.is_file() and p.suffix != ".py")
    return [p for p in files if not caches & set(p.parts) and p.as_posix() not in made and not (root / p).is_file()]


def read_record(target: Path) -> dict | None:
    """What ``course build`` wrote down about a workspace; None where there is none, or a damaged one."""
    rows = read_json(target / RECORD)
    engine, hers = rows.get("engine") or {}, rows.get("hers") or []
    good = isinstance(rows.get("phase"), int) and isinstance(rows.get("files"), dict) and isinstance(engine, dict)
    return {**rows, "engine": engine, "hers": hers} if good and isinstance(hers, list) else None


def edits(target: Path) -> list[str]:
    """Files of a workspace that are no longer as they were made; everything where the record is gone."""
    if not target.exists():
        return []
    record = read_record(target)
    have = {p.relative_to(target).as_posix(): digest(p) for p in _python_files(target)}
    if record is None:
        return sorted(have) or (["files not made by this command"] if any(target.iterdir()) else [])
    made = record["files"]
    return sorted(name for name in have.keys() | made.keys() if have.get(name) != made.get(name))


def lacking(target: Path, tests: list[str]) -> list[str]:
    """Those of ``tests`` (node ids of the present engine) that a workspace, made of an earlier one, does not have."""

    def has(test: str) -> bool:
        path, _, name = test.partition("::")
        function = name.partition("[")[0].rpartition("::")[2]
        text = (target / path).read_text(encoding="utf-8", errors="replace") if (target / path).is_file() else ""
        return bool(text) and f"def {function}(" in text if name else (target / path).is_file()

    return [test for test in tests if not has(test)]


def run_tests(target: Path, tests: list[str], capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs tests inside a workspace, on the workspace's copy of the engine."""
    args, env = pytest_of(target, tests)
    command = [sys.executable, "-m", "pytest", *args]
    return subprocess.run(command, cwd=target, env=env, capture_output=capture, text=True, check=False)


def pytest_of(target: Path, tests: list[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of pytest for tests inside a workspace."""
    env = environment()
    env["PYTHONPATH"] = f"{target}{os.pathsep}{env['PYTHONPATH']}"
    return ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", *tests], env
