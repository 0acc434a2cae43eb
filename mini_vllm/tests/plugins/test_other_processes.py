"""A platform that only one process finds: the others say so, by name, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.tests.golden.plugin_cases import NOTED, NOTES
from mini_vllm.tests.models.tiny_checkpoints import save_tiny
from mini_vllm.tests.plugins.packages import GROUPS, PAGE, ROOT, install, install_case

RECORDED = json.loads((ROOT / "mini_vllm" / "tests" / "golden" / "plugins.json").read_text(encoding="utf-8"))
NAMES = {"cpu": "mini_vllm"}
needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank: Linux on x86-64")
CHIP = """
import os
from mini_vllm import CpuPlatform

class Chip(CpuPlatform):
    device_name = "chip"

def here():
    if os.environ["ELSEWHERE"] == "fails" and os.getpid() != int(os.environ["FIRST"]):
        raise OSError("no driver")
    absent = os.environ["ELSEWHERE"] == "absent" and os.getpid() != int(os.environ["FIRST"])
    return None if absent else "chip.Chip"
"""
START = """
import json, multiprocessing, os, sys
if __name__ == "__main__":
    os.environ["FIRST"] = str(os.getpid())
    from mini_vllm import LLMEngine
    told = []
    for settings in ({"tensor_parallel_size": 2}, {"enable_multiprocessing": True},
                     {"tensor_parallel_size": 2, "enable_multiprocessing": True}):
        try:
            engine = LLMEngine(sys.argv[1], num_blocks=64, **settings)
            told.append(engine.config.device)
            engine.shutdown()
        except ValueError as error:
            told.append(str(error))
    print(json.dumps([told, len(multiprocessing.active_children())]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A platform that looks at the process that asks, and a tiny checkpoint."""
    files = {"chip.py": CHIP, "start.py": START}
    folder = install(tmp_path_factory.mktemp("site"), "chip", files, {GROUPS["platform"]: {"chip": "chip:here"}})
    save_tiny("llama", folder / "tiny")
    return folder


def run(site: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A script of the package's folder."""
    path = os.pathsep.join([str(site), str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *command], cwd=site, env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_the_real_one_asks_in_four_processes_as_the_page_says() -> None:
    asked = Counter(RECORDED["asked"])
    assert asked == {
        f"{what} {process}": times for process in ("MainProcess", "EngineCore", "VllmWorker-0", "VllmWorker-1")
        for what, times in (("general", 1), ("platform", 2))
    }  # fmt: skip
    page = PAGE.read_text(encoding="utf-8")
    assert "| processes | 4: the front end, the core, a worker for each rank | 3: " in page
    assert "the platform plug-in is asked | twice: " in page


ENGINE = """
import sys
if __name__ == "__main__":
    from mini_vllm import LLMEngine
    LLMEngine(sys.argv[1], num_blocks=64, tensor_parallel_size=2, enable_multiprocessing=True).shutdown()
"""


@pytest.mark.slow
@needs_ranks
def test_three_processes_ask_here_and_each_once(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    (folder,) = install_case(tmp_path, "notes", NOTES, NAMES, "mini_vllm")
    (folder / "notes_of_mini_vllm_class.py").write_text(NOTED.format(**NAMES), encoding="utf-8")
    (folder / "engine.py").write_text(ENGINE, encoding="utf-8")
    run(folder, "engine.py", str(site / "tiny"), NOTES=str(tmp_path / "notes.txt"))
    asked = Counter(line.split()[0] for line in (tmp_path / "notes.txt").read_text(encoding="utf-8").splitlines())
    assert asked == {"general": 3, "platform": 3}


@pytest.mark.slow
@needs_ranks
@pytest.mark.parametrize(("elsewhere", "logged"), [("there", False), ("absent", False), ("fails", True)])
def test_ranks_and_cores_ask_for_themselves(site: Path, elsewhere: str, logged: bool) -> None:
    pytest.importorskip("zmq")
    done = run(site, "start.py", "tiny", ELSEWHERE=elsewhere)
    told, left = json.loads(done.stdout)
    refusal = "device='chip': its platform plugin finds no such device on this machine"
    assert told == (["chip"] * 3 if elsewhere == "there" else [refusal] * 3) and left == 0
    assert (
        "Platform plugin chip failed, so its device counts as absent: OSError('no driver')" in done.stderr
    ) == logged
