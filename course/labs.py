"""Where the labs are, what each one allows, and how its code is loaded.

A lab is a folder ``phase-NN-slug/labs/lab-NN-slug`` with ``README.md``, ``starter.py``, ``solution.py`` and
``test_lab.py``; its row in ``course/labs.toml`` says the rest. Labs are looked up by the names of the two folders, so
a copy of a lab under another root (grading, mutation) behaves like the original."""

import ast
import difflib
import functools
import importlib.util
import io
import linecache
import os
import re
import subprocess
import sys
import traceback
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
COURSE = Path(__file__).resolve().parent
TABLE = COURSE / "labs.toml"
IMPLS = ("solution", "starter")
TAGS = ("CPU-OK", "GPU-OPT", "GPU-REQ")
DEFAULT_TIMEOUT = 20.0
REAL_VLLM_TIMEOUT = 600.0
LAB_PATH = re.compile(r"(phase-(\d\d)-[a-z0-9-]+)/labs/(lab-\d\d-[a-z0-9-]+)(?:/|$)")

SOURCES: dict[Path, str] = {}
"""Text to load in place of a file's own (mutants and listed mistakes): resolved path -> source."""


class LabError(Exception):
    """Something about a lab is wrong in a way that its reader can mend; the text says how."""


@dataclass(frozen=True)
class Lab:
    """One row of ``labs.toml``. ``timeout`` is in seconds per test, ``minutes`` is the learner's time, ``plug`` names
    what the engine has in the place of the learner's code, the part that it can replace first (none: ()),
    ``allowed_imports`` are top-level or dotted module names besides the standard library."""

    phase: str
    slug: str
    tag: str
    minutes: int
    prerequisites: tuple[str, ...] = ()
    allowed_imports: tuple[str, ...] = ("numpy",)
    plug: tuple[str, ...] = ()
    timeout: float = DEFAULT_TIMEOUT

    @property
    def phase_number(self) -> int:
        return int(self.phase[6:8])

    @property
    def folder(self) -> Path:
        """The lab's folder in this repository."""
        return ROOT / self.phase / "labs" / self.slug

    @property
    def number(self) -> str:
        """``00-01``."""
        return f"{self.phase[6:8]}-{self.slug[4:6]}"

    @property
    def name(self) -> str:
        """Short name for tables: ``00-01 kv-cache-speedup``."""
        return f"{self.number} {self.slug[7:]}"

    @property
    def key(self) -> str:
        return f"{self.phase}/{self.slug}"

    @property
    def missing_modules(self) -> list[str]:
        """What the lab imports and this environment lacks (torch, triton): its tests then skip as a whole."""
        tops = dict.fromkeys(module.partition(".")[0] for module in self.allowed_imports)
        return [top for top in tops if importlib.util.find_spec(top) is None]


def _row(phase: str, slug: str, fields: Mapping[str, object]) -> Lab:
    where = f"labs.toml, [{phase}.{slug}]"
    known = {"tag", "minutes", "prerequisites", "allowed_imports", "plug", "timeout"}
    if unknown := set(fields) - known:
        raise LabError(f"{where}: unknown key {sorted(unknown)[0]!r}; known are {', '.join(sorted(known))}")
    if fields.get("tag") not in TAGS:
        raise LabError(f"{where}: tag is {fields.get('tag')!r}; allowed are {', '.join(TAGS)}")
    if not isinstance(fields.get("minutes"), int):
        raise LabError(f"{where}: minutes must be a whole number, got {fields.get('minutes')!r}")
    lists = {k: tuple(fields[k]) for k in ("prerequisites", "allowed_imports") if k in fields}  # type: ignore[arg-type, var-annotated]
    lists["plug"] = (plug,) if isinstance(plug := fields.get("plug") or (), str) else tuple(plug)  # type: ignore[arg-type]
    rest = {k: fields[k] for k in ("tag", "minutes", "timeout") if k in fields}
    return Lab(phase, slug, **rest, **lists)  # type: ignore[arg-type]


@functools.cache
def all_labs(table: Path = TABLE) -> tuple[Lab, ...]:
    """Every row of ``labs.toml``, in order. Raises :class:`LabError` where a row is malformed."""
    phases = tomllib.loads(table.read_text(encoding="utf-8"))
    return tuple(_row(phase, slug, row) for phase, rows in sorted(phases.items()) for slug, row in sorted(rows.items()))


def lab_of(path: Path | str) -> Lab | None:
    """The lab to which a path or a node id belongs, or None; a folder without a row gets the defaults."""
    match = LAB_PATH.search(Path(str(path).partition("::")[0]).as_posix())
    if match is None:
        return None
    phase, _, slug = match.groups()
    for lab in all_labs():
        if (lab.phase, lab.slug) == (phase, slug):
            return lab
    return Lab(phase, slug, "CPU-OK", 0)


def lab_folders(root: Path = ROOT) -> list[Path]:
    """Folders of labs that hold something, in order."""
    return sorted(p for p in root.glob("phase-[0-9][0-9]-*/labs/lab-*") if p.is_dir() and any(p.iterdir()))


@functools.cache
def edited_starters(root: Path = ROOT) -> frozenset[Path]:
    """Every ``starter.py`` that holds a learner's work, committed or not; the tests of the course leave these alone."""
    command = ["git", "-C", str(root), "status", "--porcelain", "-z", "--", "*/starter.py"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        rows = os.fsdecode(done.stdout).split("\0") if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        rows = []
    changed = {root / row[3:] for row in rows if "M" in row[:2]}
    states = {folder / "starter.py": written(folder) for folder in lab_folders(root)}
    return frozenset(changed | {path for path, state in states.items() if state and (state[0] or not state[1])})


NOTHING = ast.Module([], [])


def parsed(source: Path | str | bytes) -> ast.Module | None:
    """The tree of a file or a text that may be anything; None where it is missing, or does not parse."""
    try:
        return ast.parse(source.read_bytes() if isinstance(source, Path) else source)
    except (OSError, SyntaxError, ValueError):
        return None


def written(folder: Path) -> tuple[int, int] | None:
    """How many of the solution's functions a starter has in other words, how many are stubs; None: no Python."""
    trees = [parsed(folder / f"{name}.py") for name in ("starter", "solution")]
    mine, theirs = (dict(functions(tree)) if tree else {} for tree in trees)
    stubs = {name for name, node in mine.items() if stub_message(node) is not None}
    own = [n for n in mine.keys() & theirs.keys() - stubs if ast.dump(mine[n]) != ast.dump(theirs[n])]
    return (len(own), len(stubs)) if all(trees) else None


def find_labs(text: str) -> list[Lab]:
    """Labs meant by ``00``, ``00-03``, ``lab-03-sampling-basics``, ``sampling`` or a path; else :class:`LabError`."""
    want = text.strip().replace("\\", "/").rstrip("/").lower()
    known = [lab for folder in lab_folders() if (lab := lab_of(folder))]
    exact = [
        lab
        for lab in known
        if want in (lab.phase, lab.slug, lab.key) or want.endswith((f"{lab.phase}/labs/{lab.slug}", f"/{lab.phase}"))
    ]
    is_number = re.fullmatch(r"(phase-)?\d\d?(-\d\d?)?", want)
    wanted = [int(n) for n in want.removeprefix("phase-").split("-")] if is_number else []
    numbered = [lab for lab in known if wanted and wanted == [lab.phase_number, int(lab.slug[4:6])][: len(wanted)]]
    found = exact or numbered or [lab for lab in known if len(want) > 2 and want in lab.key]
    if not found:
        names = {word: lab.name for lab in known for word in (*lab.slug[7:].split("-"), lab.slug[7:], lab.number)}
        near = dict.fromkeys(names[word] for word in difflib.get_close_matches(want, names))
        hint = f"did you mean {' or '.join(near)}?" if near else "`course next` names one, `course --help` the verbs."
        raise LabError(f"no lab or phase is called {text!r}; {hint}")
    return found


def wanted_impl(env: Mapping[str, str] = os.environ) -> str:
    """``solution``, or ``starter`` where LAB_IMPL says so. Raises :class:`LabError` for any other value."""
    value = env.get("LAB_IMPL") or "solution"
    if value not in IMPLS:
        raise LabError(
            f"LAB_IMPL={value!r} is not known: use LAB_IMPL=starter (your file) "
            "or LAB_IMPL=solution (the reference, the default)"
        )
    return value


def module_name(path: Path) -> str:
    """A name for ``sys.modules`` that no other lab file has."""
    lab = lab_of(path)
    stem = f"{lab.phase}_{lab.slug}_{path.stem}" if lab else path.stem
    return f"lab_{re.sub(r'[^0-9a-zA-Z]+', '_', stem)}_{zlib.crc32(str(path.resolve()).encode()):08x}"


def load(path: Path) -> ModuleType:
    """Executes a lab file afresh as a module of ``sys.modules``. Raises :class:`LabError` with one plain sentence."""
    path = path.resolve()
    where = short(path)
    if not path.is_file():
        raise LabError(f"{where} does not exist; `course reset {path.parent.name}` brings it back")
    source: str | bytes = SOURCES.get(path) or path.read_bytes()
    if isinstance(source, bytes) and (fault := _not_utf8(source)):
        raise LabError(f"{where}:{fault}; save it as UTF-8")
    if isinstance(source, str):
        linecache.cache[str(path)] = (len(source), None, list(io.StringIO(source, newline=None)), str(path))
    else:
        linecache.checkcache(str(path))
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        raise LabError(f"{where}:{error.lineno} does not parse ({type(error).__name__}: {error.msg}){text}") from None
    except ValueError as error:
        raise LabError(f"{where} is not a Python text file ({error})") from None
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise LabError(_import_failure(path, error)) from error
    return module


def _not_utf8(source: bytes) -> str:
    """Line and byte where a file without a declared encoding is not UTF-8; "" where it is."""
    try:
        b"coding" in b"".join(source.splitlines()[:2]) or source.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        return f"{line} is not UTF-8 text (byte 0x{source[error.start]:02x})"
    return ""


def _import_failure(path: Path, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = short(path) + (f":{lines[-1]}" if lines else "")
    if isinstance(error, ImportError):
        lab = lab_of(path)
        allowed = ", ".join(lab.allowed_imports) or "nothing" if lab else ""
        may = f"; this lab may import {allowed} and the standard library" if lab else ""
        return f"{where} cannot import: {error}{may}"
    what = f"{type(error).__name__}: {error}"
    return f"{where} stopped while it was imported ({what}); only definitions belong at module level"


def short(path: Path) -> str:
    """The path from the phase's folder on, with slashes."""
    match = LAB_PATH.search(path.as_posix())
    return path.as_posix()[match.start() :] if match else path.name


def vllm_python(env: Mapping[str, str] = os.environ, root: Path = ROOT) -> Path | None:
    """``COURSE_VLLM_PYTHON``, else the interpreter of ``.venv-vllm`` once `course vllm` has finished, else None."""
    if given := env.get("COURSE_VLLM_PYTHON"):
        return Path(given)
    venv = root / ".venv-vllm"
    return venv / "bin" / "python" if (venv / "course-vllm.json").is_file() else None


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods with their dotted names (``A.x.setter`` too); none inside another function."""
    for node in getattr(tree, "body", []):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            part = next((f".{d.attr}" for d in node.decorator_list if isinstance(d, ast.Attribute)), "")
            yield prefix + node.name + (part if part in (".setter", ".deleter") else ""), node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def stub_message(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """The sentence of ``raise NotImplementedError("...")`` where that is the whole body, docstring aside; else None."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Raise):
        return None
    exc = body[0].exc
    name = exc.func if isinstance(exc, ast.Call) else exc
    if not isinstance(name, ast.Name) or name.id != "NotImplementedError":
        return None
    args = exc.args if isinstance(exc, ast.Call) else []
    return str(args[0].value) if args and isinstance(args[0], ast.Constant) else ""


def stubs(path: Path) -> list[tuple[int, str, str]]:
    """(line, function, sentence) of what is still to be written in a file; nothing where it does not parse."""
    found = functions(parsed(SOURCES.get(path.resolve()) or path) or NOTHING)
    return [(node.lineno, name, text) for name, node in found if (text := stub_message(node)) is not None]
