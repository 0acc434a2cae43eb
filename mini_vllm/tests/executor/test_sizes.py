"""A number of ranks that a model cannot be shared among is refused where it is given: before any process or memory."""

from __future__ import annotations

import multiprocessing.process
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mini_vllm import LLM, AsyncLLM, EngineArgs
from mini_vllm.distributed import shared_memory
from mini_vllm.entrypoints.cli.main import app
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.tests.models.decoder_checkpoints import DECODERS
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES, save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
HEADS = "tensor_parallel_size must divide num_heads of the model, 4, got"


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started, or shared memory that is taken, fails the test."""

    def started(*args: Any, **kwargs: Any) -> None:
        pytest.fail("it was not refused before a process or shared memory was asked for")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", started)
    monkeypatch.setattr("mini_vllm.distributed.device_communicators.shm_broadcast.MessageQueue.__init__", started)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.mark.parametrize("size", [3, 8, 64, 10**6, 2**40])
def test_offline_engines_refuse_it(llama: str, size: int) -> None:
    for more in ({}, {"enable_multiprocessing": True}, {"load_format": "dummy"}):
        with pytest.raises(ValueError, match=f"{HEADS} {size}"):
            LLM(llama, tensor_parallel_size=size, skip_tokenizer_init=True, **more)


def test_the_async_engine_refuses_it(llama: str) -> None:
    with pytest.raises(ValueError, match=f"{HEADS} 16"):
        AsyncLLM.from_engine_args(EngineArgs(llama, tensor_parallel_size=16, skip_tokenizer_init=True))


@pytest.mark.parametrize("command", [["generate", "-p", "hi", "-n", "3"], ["serve", "models/pocket", "--port", "0"]])
def test_the_command_line_refuses_it(command: list[str]) -> None:
    flag = ["--tensor-parallel-size", "64"] if command[0] == "serve" else ["-E", "tensor_parallel_size=64"]
    result = CliRunner().invoke(app, [*command, *flag])
    assert result.exit_code == 2, result.output
    assert "tensor_parallel_size must divide num_heads of the model, 4, got 64" in " ".join(result.output.split())


def test_a_draft_model_is_looked_at_too(tmp_path: Path) -> None:
    one = {**FAMILIES["llama"], "num_attention_heads": 8, "num_key_value_heads": 8}
    target, draft = save_random_checkpoint(tmp_path / "a", one, seed=1), save_tiny("llama", tmp_path / "b")
    drafts = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match="must divide num_heads of the draft model, 4, got 8"):
        LLM(str(target), tensor_parallel_size=8, skip_tokenizer_init=True, speculative_config=drafts)


@pytest.mark.parametrize(
    ("raw", "settings", "words"),
    [
        ({**FAMILIES["llama"], "intermediate_size": 97}, {}, "must divide intermediate_size of the model, 97, got 2"),
        ({**FAMILIES["llama"], "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 96},
         {"tensor_parallel_size": 6}, "a multiple or a divisor of num_kv_heads of the model, 4, got 6"),
        ({**DECODERS["gpt-oss"], "intermediate_size": 97}, {}, "the inner layer of an expert of the model, 97, got 2"),
        (DECODERS["gpt-oss"], {"enable_expert_parallel": True}, "enable_expert_parallel is not supported for"),
        (DECODERS["olmo2"], {"tensor_parallel_size": 4}, "at most num_kv_heads of the model, 2, for Olmo2"),
        (FAMILIES["llama"], {"tensor_parallel_size": 1, "pipeline_parallel_size": 4}, "pipeline_parallel_size"),
    ],
)  # fmt: skip
def test_every_size_that_ranks_share_is_looked_at(
    tmp_path: Path, raw: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    folder = save_random_checkpoint(tmp_path, raw, seed=1)
    with pytest.raises(ValueError, match=words):
        LLM(str(folder), **{"tensor_parallel_size": 2, "skip_tokenizer_init": True, **settings})


def test_a_model_that_pools_or_takes_media_has_one_stage(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a model that pools needs pipeline_parallel_size=1, got 2"):
        LLM(llama, convert="embed", pipeline_parallel_size=2)
    monkeypatch.setattr("mini_vllm.models.llama.LlamaForCausalLM.supports_multimodal", True, raising=False)
    with pytest.raises(ValueError, match="LlamaForCausalLM, which takes media, needs pipeline_parallel_size=1, got 2"):
        LLM(llama, pipeline_parallel_size=2)
