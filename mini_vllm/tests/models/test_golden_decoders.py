"""The new decoders without torch: what transformers and real vLLM said of the tiny checkpoints, replayed; and the same
tokens with chunks, a prefix cache, preemption, two ranks, and in either form."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.kv_cache_interface import MLAAttentionSpec
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.tests.compilation.test_cpu_fused import compare
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.record_decoders import BY_VLLM, FILE, NEW, prompts
from mini_vllm.tests.models.decoder_checkpoints import DECODERS, save_decoder
from mini_vllm.tests.models.tiny_checkpoints import digest

TIE = 1e-4
PLAIN_ONLY = ("gpt-oss", "deepseek-v2")
GOLDEN: dict[str, Any] = read_packed(FILE)
SLOWLY = [name if name in ("gemma3", "gpt-oss", "deepseek-v2") else pytest.param(name, marks=pytest.mark.slow)
          for name in DECODERS]  # fmt: skip
needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save_decoder(name, tmp_path_factory.mktemp(name)) for name in DECODERS}


def length(name: str) -> int:
    """Longer than Phi-3's original context, so that the long factors are taken; what "dynamic" is stretched to."""
    return 128 if name == "llama-dynamic" else 256


def answers(folder: Path, name: str, count: int = 6, new: int = NEW, **engine_args: Any) -> list[list[int]]:
    """Greedy tokens of the first `count` prompts, in one batch."""
    args = {"num_blocks": 120, "block_size": 8, "max_model_len": length(name), **engine_args}
    llm = LLM(str(folder), **args)
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    asked: list[Any] = [{"prompt_token_ids": p} for p in prompts()[:count]]
    return [list(o.outputs[0].token_ids) for o in llm.generate(asked, params, use_tqdm=False)]


def logits_of(folder: Path, name: str, sequence: list[int]) -> np.ndarray:
    """Logits after every token, of the plain form."""
    from mini_vllm.attention.backend import AttentionMetadata
    from mini_vllm.attention.quantized_kv_cache import make_kv_cache
    from mini_vllm.attention.selector import make_attention

    model, tokens = load_model(folder, max_model_len=length(name)), np.array(sequence)
    shape = model.num_layers, 40, 8, model.num_kv_heads, model.head_dim
    backend = make_attention(model, make_kv_cache(*shape, use_mla=model.use_mla), enforce_eager=True)
    at = np.arange(len(tokens))
    metadata = AttentionMetadata(np.array([0, len(at)]), np.array([len(at)]), np.arange(1, 33)[None], at + 8)
    return model.compute_logits(model.forward(tokens, at, backend.begin_step(metadata)))


@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_transformers(name: str, folders: dict[str, Path]) -> None:
    assert digest(folders[name]) == GOLDEN[name]["checkpoint_sha256"], "not the weights that were recorded"
    found = logits_of(folders[name], name, prompts()[1])[-1]
    assert np.abs(found - np.array(GOLDEN[name]["transformers"]["logits"])).max() <= 1e-4


@pytest.mark.parametrize("name", SLOWLY)
def test_64_tokens_are_those_of_transformers(name: str, folders: dict[str, Path]) -> None:
    expected = GOLDEN[name]["transformers"]["tokens"]
    for row, tokens in enumerate(answers(folders[name], name)):
        if tokens != expected[row]:  # only where two tokens are as good as equal
            at = next(i for i, pair in enumerate(zip(tokens, expected[row], strict=True)) if pair[0] != pair[1])
            last = logits_of(folders[name], name, prompts()[row] + tokens[:at])[-1]
            assert abs(last[tokens[at]] - last[expected[row][at]]) < TIE


@pytest.mark.parametrize("name", [name for name in DECODERS if name in BY_VLLM])
def test_tokens_and_logprobs_are_those_of_real_vllm(name: str, folders: dict[str, Path]) -> None:
    """Its 64 tokens of two prompts go through our plain form at once: each is our likeliest, as likely as it said."""
    golden = GOLDEN[name]["vllm"]
    for row in (0, 4):
        tokens, prompt = golden["tokens"][row], prompts()[row]
        logits = logits_of(folders[name], name, prompt + tokens)[len(prompt) - 1 : -1].astype(np.float64)
        best = logits.max(axis=-1)
        chosen = logits[np.arange(NEW), tokens]
        assert (best - chosen < TIE).all()
        logprobs = chosen - best - np.log(np.exp(logits - best[:, None]).sum(axis=-1))
        assert np.abs(logprobs - golden["logprobs"][row]).max() < 1e-3


@pytest.mark.parametrize("name", SLOWLY)
def test_chunks_prefix_cache_and_preemption_change_no_token(name: str, folders: dict[str, Path]) -> None:
    folder, exact = folders[name], {"dtype": "float64", "count": 4, "new": 24}
    expected = answers(folder, name, enable_prefix_caching=False, **exact)
    assert answers(folder, name, max_num_batched_tokens=16, max_num_seqs=4, **exact) == expected
    assert answers(folder, name, num_blocks=64, **exact) == expected
    assert answers(folder, name, enforce_eager=True, **exact) == expected
    llm = LLM(str(folder), dtype="float64", num_blocks=120, block_size=8, max_model_len=length(name))
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    asked: list[Any] = [{"prompt_token_ids": p} for p in prompts()[:4]]
    for turn in range(2):
        outputs = llm.generate(asked, params, use_tqdm=False)
        assert [list(output.outputs[0].token_ids) for output in outputs] == expected
        assert (outputs[1].num_cached_tokens or 0) > 0 or turn == 0


@pytest.mark.parametrize("name", SLOWLY)
def test_a_request_that_was_preempted_says_the_same(name: str, folders: dict[str, Path]) -> None:
    sizes: dict[str, Any] = {"dtype": "float64", "block_size": 8, "max_model_len": 96}
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    asked: list[Any] = [{"prompt_token_ids": p} for p in prompts()[2:6]]
    found = []
    few = 30 if any(load_model(folders[name]).sliding_windows) else 20  # several groups share the pool
    for num_blocks in (100, few):
        llm = LLM(str(folders[name]), num_blocks=num_blocks, **sizes)
        found.append([list(o.outputs[0].token_ids) for o in llm.generate(asked, params, use_tqdm=False)])
        if num_blocks == few:
            assert llm.llm_engine.stats.num_preemptions > 0
    assert found[0] == found[1]


@needs_ranks
@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_two_ranks_say_the_same(name: str, folders: dict[str, Path]) -> None:
    args: dict[str, Any] = {"count": 3, "new": 16, "dtype": "float64"}
    alone = answers(folders[name], name, **args)
    for eager in (False, True):
        assert answers(folders[name], name, tensor_parallel_size=2, enforce_eager=eager, **args) == alone


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in PLAIN_ONLY])
def test_the_compiled_form_computes_the_same(name: str, folders: dict[str, Path]) -> None:
    compare(load_model(folders[name], "float64"), (1, 33))


@pytest.mark.parametrize("name", PLAIN_ONLY)
def test_without_a_compiled_form_the_engine_says_so(
    name: str, folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    from mini_vllm.logger import warning_once

    getattr(warning_once, "cache_clear", lambda: None)()
    with caplog.at_level(logging.WARNING):
        LLM(str(folders[name]), num_blocks=64)
    assert any("has no compiled form: its plain form is used" in r.getMessage() for r in caplog.records)


def test_latents_take_less_memory_than_keys_and_values(folders: dict[str, Path]) -> None:
    """24 + 8 numbers a token and layer, for all heads; 4 heads with keys of 24 and values of 16 would be 160."""
    llm = LLM(str(folders["deepseek-v2"]), num_blocks=64, block_size=8)
    core = llm.llm_engine.engine_core
    [group] = core.kv_cache_config.kv_cache_groups
    assert isinstance(group.kv_cache_spec, MLAAttentionSpec)
    assert group.kv_cache_spec.page_size_bytes == 8 * 32 * 4
    assert core.model_runner.kv_cache.nbytes == 3 * 64 * 8 * 32 * 4


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("deepseek-v2", {"kv_cache_dtype": "int8"}, "mla: \\[kv_cache_dtype not supported\\]"),
        ("gpt-oss", {"quantization": "nf4"}, "quantization is not supported for the experts of GptOssForCausalLM"),
        ("gpt-oss", {"attention_backend": "paged_gather"}, "attention sinks not supported"),
        ("olmo2", {"tensor_parallel_size": 4}, "tensor_parallel_size must be at most num_kv_heads of the model, 2"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    name: str, how: dict[str, Any], message: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(str(folders[name]), num_blocks=64, **how)


def test_longrope_depends_on_the_longest_sequence_that_is_served(folders: dict[str, Path]) -> None:
    """Without a word, the original context, as upstream; beyond it the long factors, for short prompts too."""
    assert LLM(str(folders["phi3"]), num_blocks=64).llm_engine.engine_core.max_model_len == 64
    short, long = (answers(folders["phi3"], "phi3", new=8, max_model_len=n) for n in (64, 256))
    default = LLM(str(folders["phi3"]), num_blocks=120)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    [output] = default.generate([{"prompt_token_ids": prompts()[5]}], params, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == short[5]
    assert short != long
