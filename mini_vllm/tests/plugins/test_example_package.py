"""`examples/reference_accelerator`: what an outsider would write, by its entry points, as pip would leave them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mini_vllm
from mini_vllm import LLM, EngineConfig, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.plugins import PLATFORM_PLUGINS_GROUP, brought_by
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.models.tiny_checkpoints import save_tiny
from mini_vllm.tests.plugins.packages import ROOT, install_project

EXAMPLE = ROOT / "examples" / "reference_accelerator"
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": ids} for ids in ([5, 6, 7], [9, 8, 7, 6, 5])]
SETTINGS = "num_blocks=64, max_model_len=64"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip leaves behind; the package itself stays where it is."""
    return install_project(tmp_path_factory.mktemp("site"), (EXAMPLE / "pyproject.toml").read_text("utf-8"), {})


@pytest.fixture
def example(fresh: None, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed in this process."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(site))  # before what an editable installation has left in the example's folder


def run(site: Path, *command: str, cwd: Path = ROOT, **env: str) -> str:
    """A command in which it is installed."""
    path = os.pathsep.join([str(site), str(EXAMPLE), str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def tokens(llm: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def test_it_serves_and_counts_what_the_roofline_says(example: None, tmp_path: Path) -> None:
    folder = str(save_tiny("llama", tmp_path))
    assert EngineConfig().device == "refacc" and brought_by(PLATFORM_PLUGINS_GROUP, "refacc") == "refacc 1.0"
    llm = LLM(folder, num_blocks=64, max_model_len=64)
    on_a_cpu = LLM(folder, device="cpu", dtype="float64", enforce_eager=True, num_blocks=64, max_model_len=64)
    assert tokens(llm) == tokens(on_a_cpu)
    ((report,), (steps,)) = (llm.llm_engine.collective_rpc(name) for name in ("get_report", "get_steps"))
    assert "4 steps" in report and report.count("equal in every step") == 1
    model = on_a_cpu.llm_engine.engine_core.model_executor.driver_worker.model
    norms = (2 * model.num_layers + 1) * model.config.hidden_size
    kinds = steps[-1].kinds
    assert kinds["projections"].flops + kinds["logits"].flops == 2 * 2 * (in_products(model) - norms)
    assert (
        steps[-1].total("kv_read") == (3 + 3 + 5 + 3) * 2 * model.num_layers * model.num_kv_heads * model.head_dim * 8
    )


def in_products(model: Any) -> int:
    """Parameters without an embedding that is only looked up."""
    tied = model.lm_head is model.model.embed_tokens
    return model.num_parameters - (0 if tied else model.model.embed_tokens.weight.size)


def test_a_model_without_a_program_is_refused(example: None, tmp_path: Path) -> None:
    folder = str(save_tiny("qwen2", tmp_path))
    with pytest.raises(ValueError, match="device='refacc' has programs for Llama and Mistral, got a Qwen2ForCausalLM"):
        LLM(folder, num_blocks=64, max_model_len=64)


def test_it_imports_public_names_alone() -> None:
    found = set()
    for file in sorted(EXAMPLE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("mini_vllm") for alias in node.names), file
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mini_vllm"):
                assert node.module == "mini_vllm", f"{file}: {node.module}"
                found.update(alias.name for alias in node.names)
    assert found <= set(mini_vllm.__all__)
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    assert found == set(re.findall(r"`(\w+)`", readme.split("it imports public names alone:")[1].split("\n\n")[0]))


TWO_PLACES = f"""
import sys
from mini_vllm import LLM, LLMEngine
from mini_vllm.tests.plugins.test_example_package import GREEDY, PROMPTS, tokens
if __name__ == "__main__":
    told = [tokens(LLM(sys.argv[1], {SETTINGS}, **settings)) for settings in (
        {{"device": "cpu", "dtype": "float64"}}, {{"tensor_parallel_size": 2}},
    )]
    engine = LLMEngine(sys.argv[1], enable_multiprocessing=True, {SETTINGS})
    print(told[0] == told[1], engine.config.device)
    engine.add_request("a", PROMPTS[0], GREEDY)
    while engine.has_unfinished_requests():
        done = engine.step()
    print(done[0].outputs[0].token_ids == told[0][0])
    engine.shutdown()
"""


@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank: Linux on x86-64")
def test_its_devices_are_in_ranks_and_in_a_core_of_its_own(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    script = tmp_path / "two_places.py"
    script.write_text(TWO_PLACES, encoding="utf-8")
    assert run(site, str(script), str(save_tiny("llama", tmp_path / "tiny"))).split() == ["True", "refacc", "True"]


@pytest.mark.slow
@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_its_own_tests_pass_and_its_readme_is_what_it_prints(site: Path) -> None:
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    said = run(site, "-m", "refacc.cli", "models/pocket", "What is a KV block?")
    assert f"```text\n{said}```" in readme
    command = "-m", "mini_vllm.entrypoints.cli.main", "generate", "-m", "models/pocket", "-p", "What is a KV block?"
    said = run(site, *command, "--engine", "device=refacc", "--max-tokens", "12", "--temperature", "0")
    assert f"compatibility.\n{said.strip()}\n```" in readme
    told = run(site, "-m", "mini_vllm.entrypoints.cli.main", "info", "models/pocket")
    assert "\nplatform refacc (from refacc 1.0, outside)\n" in told
    told = run(site, "-m", "pytest", "-q", str(EXAMPLE / "tests"), "-p", "no:cacheprovider")
    assert re.search(r"^\d+ passed", told, re.M) and "skipped" not in told
