"""`docs/plugins.md` is followed: its blocks become the package, which then is known in every process."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.models import registry
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.models.tiny_checkpoints import save_tiny
from mini_vllm.tests.plugins.packages import PAGE, ROOT, blocks_of_the_page, install_the_pages_package

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
ASK = "import sys; from mini_vllm.tests.plugins import test_plugins_page as page; page.main(*sys.argv[1:])"
needs_pocket = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank: Linux on x86-64")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package, and a tiny checkpoint for its model."""
    folder = install_the_pages_package(tmp_path_factory.mktemp("mychip"))
    config = save_tiny("llama", folder / "tiny") / "config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps({**said, "architectures": ["LeastLikelyForCausalLM"]}))
    return folder


def run(work: Path, *command: str, **env: str) -> str:
    path = os.pathsep.join([str(work), str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *command], cwd=work, env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_pocket
def test_the_page_says_what_its_package_prints(work: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    command, said = re.search(r"^```bash\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.M | re.S).groups()
    assignment, _, script, checkpoint = shlex.split(command)
    assert (assignment, script, checkpoint) == ("MYCHIP=1", "run.py", "../models/pocket")
    assert run(work, script, str(POCKET), MYCHIP="1") == said
    assert set(blocks_of_the_page()) == {
        "pyproject.toml", "run.py", *(f"mychip/{name}.py" for name in ("__init__", "model", "form", "platform"))
    }  # fmt: skip


def known(model: object) -> str:
    """In a worker: who computes here, and whether the package is known."""
    names = registry._MODELS.get("LeastLikelyForCausalLM"), "mychip.platform" in sys.modules
    return f"{type(model).__module__} {names[0]} {names[1]} {os.getpid()}"


def main(folder: str, settings: str) -> None:
    """In a process of its own: an engine over the checkpoint, and who computed what."""
    llm = LLM(folder, num_blocks=64, **json.loads(settings))
    tokens = llm.generate({"prompt_token_ids": [5, 6, 7]}, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    told = llm.apply_model(known) if "tensor_parallel_size" in settings else []
    device = llm.llm_engine.config.device
    print(json.dumps({"tokens": tokens, "told": told, "pid": os.getpid(), "device": device}))


@pytest.fixture(scope="module")
def expected(work: Path) -> list[int]:
    return json.loads(run(work, "-c", ASK, "tiny", "{}"))["tokens"]


@needs_ranks
def test_a_spawned_rank_knows_the_model(work: Path, expected: list[int]) -> None:
    """And the platform, which names the rank's class of worker, is asked there too."""
    answer = json.loads(run(work, "-c", ASK, "tiny", '{"tensor_parallel_size": 2}', MYCHIP="1"))
    first, second = (told.split() for told in answer["told"])
    assert first[:3] == second[:3] == ["mychip.model", "mychip.model:LeastLikelyForCausalLM", "True"]
    assert int(first[3]) == answer["pid"] != int(second[3])
    assert answer["tokens"] == expected


@pytest.mark.parametrize("chips", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_core_of_its_own_knows_it_and_the_platform(work: Path, expected: list[int], chips: str) -> None:
    pytest.importorskip("zmq")
    answer = json.loads(run(work, "-c", ASK, "tiny", '{"enable_multiprocessing": true}', MYCHIP=chips))
    assert answer["tokens"] == expected and answer["device"] == ("cpu", "mychip")[int(chips)]


def test_a_look_at_the_checkpoint_knows_it_too(work: Path) -> None:
    assert "LeastLikelyForCausalLM" in run(work, "-m", "mini_vllm.entrypoints.cli.main", "info", "tiny")


def test_who_is_not_allowed_is_not_there(work: Path) -> None:
    with pytest.raises(AssertionError, match="architecture 'LeastLikelyForCausalLM' is not supported"):
        run(work, "-c", ASK, "tiny", "{}", MINI_VLLM_PLUGINS="mychip")


def test_the_platform_refuses_what_the_chip_has_not(work: Path) -> None:
    with pytest.raises(AssertionError, match="kv_cache_dtype must be 'auto' with device='mychip', got 'int8'"):
        run(work, "-c", ASK, "tiny", '{"kv_cache_dtype": "int8"}', MYCHIP="1")
