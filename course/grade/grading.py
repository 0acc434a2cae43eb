"""Grades submissions: lab by lab in a clean copy, first the reference and the untouched starter, then everyone."""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course.contract.warm import environment
from course.grade.clean import make_clean, readable
from course.grade.intake import Submission
from course.grade.own import own_words
from course.grade.settings import DONE, Settings
from course.labs import ROOT, Lab, LabError

KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR")
"""What a server takes over from the caller's environment: no tokens, no keys."""
ENVIRONMENT = {"LAB_IMPL": "starter", "PYTHONHASHSEED": "0", "COURSE_NO_RECORD": "1"}
ENVIRONMENT |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ENVIRONMENT |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
REFERENCE, UNTOUCHED = "reference", "untouched"
AS_LONG, AT_LEAST = 20.0, 2.0
"""A test may take this many times the reference's processor time, at least so many seconds, at most the limit."""


@dataclass(frozen=True)
class LabResult:
    """One submission in one lab. ``status`` is graded, missing, broken (does not parse or decode), tampered, or held
    (outside the small language: a human decides, and the lab is no part of the points until then); only graded gives
    points. ``tests`` maps each test that counts to (outcome, message)."""

    submission: str
    lab: Lab
    status: str
    tests: dict[str, tuple[str, str]] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    late: float = 1.0

    @property
    def passed(self) -> int:
        return sum(outcome == "passed" for outcome, _ in self.tests.values()) if self.status == "graded" else 0

    @property
    def share(self) -> float:
        """Part of the lab's points, after what lateness takes."""
        return self.late * self.passed / len(self.tests) if self.tests else 0.0


@dataclass
class Grades:
    """Rows by submission, then lab. ``walls`` says what bounded the forks, ``missing`` what did not."""

    labs: list[Lab]
    submissions: list[Submission]
    rows: list[LabResult]
    settings: Settings
    walls: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    pairs: list[Any] = field(default_factory=list)

    def of(self, name: str) -> list[LabResult]:
        return [row for row in self.rows if row.submission == name]

    def total(self, name: str) -> float:
        """Weighted points of a submission in the labs that are not held, 0 to 100."""
        rows = [row for row in self.of(name) if row.status != "held"]
        weights = sum(self.settings.weight(row.lab) for row in rows)
        return 100.0 * sum(self.settings.weight(r.lab) * r.share for r in rows) / weights if weights else 0.0


@functools.cache
def walls() -> tuple[list[str], list[str]]:
    """(kernel walls that this system has, sentences about those it lacks), tried once, in a process of its own."""
    code = (
        "import sys; from pathlib import Path; from course.grade import kernel\n"
        "files = kernel.forbid_files([Path('/usr')], []); calls = kernel.forbid_system_calls()\n"
        "print('files' if files else '', 'calls' if calls else '')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    have = done.stdout.split()
    words = {"files": "no Landlock here: files outside the clean copy are"}
    words["calls"] = "no seccomp here: network, processes and signals are"
    missing = [f"{t} kept from submissions by the interpreter only" for name, t in words.items() if name not in have]
    if sys.platform != "linux":
        missing.append("not Linux: time goes by the clock, memory has no bound, a hidden process may outlive the run")
    return have, missing


def grade(
    submissions: Sequence[Submission],
    labs: Sequence[Lab],
    settings: Settings,
    jobs: int = 0,
    private: Sequence[Path] = (),
    root: Path = ROOT,
    note: Callable[[str], None] = lambda text: None,
) -> Grades:
    """Runs every submission's file of every lab. ``private``: folders that no submission may read. A lab whose
    reference is not green in the clean copy is left out, with the reason in ``skipped``. Raises :class:`LabError`
    where this system cannot fork, or no lab is left."""
    if not hasattr(os, "fork"):
        raise LabError("`course grade` forks for each submission; run it on Linux (or in WSL)")
    have, missing = walls()
    made = Grades(list(labs), list(submissions), [], settings, have, missing)
    with tempfile.TemporaryDirectory(prefix="course-grade-") as folder:
        temp = Path(folder).resolve()
        base: dict[str, Any] = {"root": str(make_clean(labs, temp / "clean", root)), "walls": have}
        base |= {"readable": readable(root, *private), "accepted": settings.accepted, "trusted": False}
        base |= {"limits": asdict(settings.limits), "jobs": jobs or cores() + 1}
        for lab in labs:
            note(f"{lab.name}: the reference")
            language = _language(lab, settings, root)
            with Server(lab, base["root"], language["allowed"], temp) as server:
                try:
                    counted, seconds = _baseline(lab, base, root, server)
                except LabError as error:
                    made.skipped.append(str(error))
                    continue
                note(f"{lab.name}: {len(submissions)} submissions")
                job = base | language | {"seconds": seconds}
                made.rows += _lab_rows(lab, job, counted, submissions, settings, server)
    if not made.rows:
        raise LabError("no lab could be graded: " + "; ".join(made.skipped or ["none was named"]))
    made.labs = [lab for lab in labs if any(row.lab == lab for row in made.rows)]
    made.rows.sort(key=lambda row: (row.submission, row.lab.key))
    return made


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _language(lab: Lab, settings: Settings, root: Path) -> dict[str, Any]:
    folder = root / lab.phase / "labs" / lab.slug
    solution, test = ((folder / name).read_text(encoding="utf-8") for name in ("solution.py", "test_lab.py"))
    own = own_words(untouched_starter(folder).decode(), solution, test, "mini_vllm" in lab.allowed_imports)
    return {"allowed": [*lab.allowed_imports, *settings.allow], "own": own}


def _baseline(lab: Lab, base: dict[str, Any], root: Path, server: "Server") -> tuple[list[str], dict[str, float]]:
    """Tests that count: green on the reference and red on the untouched starter; and the seconds that each may take.
    Both run before any submission, in a process that has ended by then. Raises :class:`LabError` where none counts."""
    folder = root / lab.phase / "labs" / lab.slug
    texts = {REFERENCE: (folder / "solution.py").read_bytes(), UNTOUCHED: untouched_starter(folder)}
    job = base | {"trusted": True, "limits": base["limits"] | {"stops": 1 << 30}}
    rows = server.serve(job | {"seconds": {}}, texts)
    good, stub = rows[REFERENCE]["outcomes"], rows[UNTOUCHED]["outcomes"]
    red = [name for name, (outcome, _) in good.items() if outcome not in ("passed", "skipped")]
    status = rows[REFERENCE]["status"]
    if red or status not in ("graded", ""):  # "": pytest has collected no test
        why = f"{red[0]}: {good[red[0]][1]}" if red else str(rows[REFERENCE]["findings"])
        raise LabError(f"{lab.name}: the reference itself is not green in the clean copy: {why}")
    counted = [n for n, (outcome, _) in good.items() if outcome == "passed" and stub.get(n, [""])[0] != "passed"]
    if not counted:
        raise LabError(f"{lab.name}: no test of it runs here (it needs {', '.join(lab.missing_modules) or 'a GPU'})")
    most = base["limits"]["test_seconds"]
    return counted, {n: min(most, max(AT_LEAST, AS_LONG * s)) for n, s in rows[REFERENCE]["used"].items()}


def untouched_starter(folder: Path) -> bytes:
    """The starter as the course has it: from git where this clone has it, else the file."""
    command = ["git", "-C", str(folder), "show", "HEAD:./starter.py"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (folder / "starter.py").read_bytes()
    return done.stdout if done.returncode == 0 else (folder / "starter.py").read_bytes()


class Server:
    """A process that has imported a lab's tests, and forks for each job (``course.grade.server``)."""

    def __init__(self, lab: Lab, root: str, allowed: list[str], temp: Path) -> None:
        self.lab, self.folder = lab, Path(root, lab.phase, "labs", lab.slug)
        self.home = tempfile.TemporaryDirectory(dir=temp)
        env = {k: v for k, v in os.environ.items() if k in KEPT} | ENVIRONMENT
        env |= {"PYTHONPATH": root, "HOME": self.home.name}
        command = [sys.executable, "-m", "course.grade.server", root, str(self.folder), *allowed]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, cwd=root, env=env, text=True, errors="replace", **pipes)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # between two jobs it holds nothing
        self.process.communicate()
        self.home.cleanup()

    def serve(self, job: dict[str, Any], texts: dict[str, bytes]) -> dict[str, Any]:
        """One job over ``texts`` (submission -> file); its rows by submission."""
        with tempfile.TemporaryDirectory(dir=self.home.name) as inside:
            inbox, scratch = Path(inside, "inbox"), Path(inside, "scratch")
            inbox.mkdir()
            scratch.mkdir()
            names = {str(number): name for number, name in enumerate(texts)}
            for number, name in names.items():
                (inbox / number).write_bytes(texts[name])
            job = job | {"lab": str(self.folder), "names": list(names), "inbox": str(inbox), "scratch": str(scratch)}
            file, out = Path(inside, "job.json"), Path(inside, "out.json")
            file.write_text(json.dumps(job), encoding="utf-8")
            said = self._ask(file, out)
            if not out.is_file():
                raise LabError(f"{self.lab.name}: its tests do not run here: {said.strip()[-800:]}")
            text = json.dumps(json.loads(out.read_text(encoding="utf-8"))["rows"])
        for path in (inside, self.home.name):  # the same on every run
            text = text.replace(path, "")
        rows = json.loads(re.sub(r"0x[0-9a-f]{6,}", "0x...", text))
        return {names[row["name"]]: row for row in rows}

    def _ask(self, file: Path, out: Path) -> str:
        """Waits for a job's end; what the process has said meanwhile, its last words where it has ended."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps([str(file), str(out)]) + "\n")
            stdin.flush()
        said = []
        for line in stdout:
            if line == f"{DONE}\n":
                break
            said.append(line)
        return "".join(said)


def _lab_rows(
    lab: Lab,
    job: dict[str, Any],
    counted: list[str],
    submissions: Sequence[Submission],
    settings: Settings,
    server: Server,
) -> list[LabResult]:
    taken = {s.name: s.take(lab.key, settings.accepted) for s in submissions}
    texts = {name: data for name, (data, _) in taken.items() if data is not None}
    first = {data: name for name, data in reversed(texts.items())}  # the same file is run once
    found = server.serve(job, {name: data for data, name in first.items()}) if texts else {}
    rows = {name: found[first[data]] for name, data in texts.items()}
    made = []
    for submission in submissions:
        why = tuple(taken[submission.name][1])
        none: dict[str, Any] = {"status": "held" if why else "missing", "findings": why, "outcomes": {}}
        row = rows.get(submission.name, none)
        rest = ("missing" if row["status"] == "missing" else "not run", "")
        tests = {name: tuple(row["outcomes"].get(name, rest)) for name in counted}
        late = settings.late_factor(lab, settings.submitted.get(submission.name, submission.when))
        made.append(LabResult(submission.name, lab, row["status"], tests, tuple(row["findings"]), late))
    return made
