"""A platform that only one process finds: the others say so, by name, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.tests.models.tiny_checkpoints import save_tiny
from mini_vllm.tests.plugins.packages import GROUPS, ROOT, install

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank: Linux on x86-64"),
]
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


@pytest.mark.parametrize(("elsewhere", "logged"), [("there", False), ("absent", False), ("fails", True)])
def test_ranks_and_cores_ask_for_themselves(site: Path, elsewhere: str, logged: bool) -> None:
    pytest.importorskip("zmq")
    path = os.pathsep.join([str(site), str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "start.py", "tiny"], cwd=site, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, "ELSEWHERE": elsewhere},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told, left = json.loads(done.stdout)
    refusal = "device='chip': its platform plugin finds no such device on this machine"
    assert told == (["chip"] * 3 if elsewhere == "there" else [refusal] * 3) and left == 0
    assert (
        "Platform plugin chip failed, so its device counts as absent: OSError('no driver')" in done.stderr
    ) == logged
