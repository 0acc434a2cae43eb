"""Models with experts: what an engine counts, ranks, quantized experts, and what a wrong checkpoint says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.model_loader.safetensors_reader import CheckpointError
from mini_vllm.tests.models import tiny_checkpoints as tiny
from mini_vllm.tests.models.test_golden_vllm import compare, load
from mini_vllm.transformers_utils.config import HFConfig

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def test_an_engine_counts_its_assignments(tmp_path: Path) -> None:
    """top_k for every token that went through, in every layer; Qwen's middle layer here is dense."""
    llm = LLM(str(tiny.save_tiny("qwen3-moe", tmp_path)), num_blocks=64)
    llm.generate([{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [9] * 40}], GREEDY, use_tqdm=False)
    stats = llm.llm_engine.stats
    assert stats.expert_load is llm.llm_engine.model.expert_load is not None
    assert stats.expert_load.counts.shape == (2, 8)
    assert stats.expert_load.counts.sum(axis=1).tolist() == [3 * stats.num_scheduled_tokens] * 2
    assert all(1 <= value <= 8 / 3 for value in stats.expert_load.imbalance())
    assert "2 layers, 8 experts" in repr(stats.expert_load)
    stats.expert_load.reset()
    assert not stats.expert_load.counts.any()


def test_padding_and_capture_are_not_counted(tmp_path: Path) -> None:
    """With CUDA graphs, steps are padded to captured sizes, and the captures run the model too."""
    folder, prompts = str(tiny.save_tiny("mixtral", tmp_path)), [{"prompt_token_ids": [5, 6, 7]}] * 3
    counts = []
    for mode in ("NONE", "FULL_AND_PIECEWISE"):
        llm = LLM(folder, num_blocks=64, cudagraph_mode=mode, cudagraph_capture_sizes=[8, 16])
        llm.generate(prompts, GREEDY, use_tqdm=False)
        assert llm.llm_engine.stats.expert_load is not None
        counts.append(llm.llm_engine.stats.expert_load.counts)
    assert (counts[0] == counts[1]).all() and counts[0].any()


def test_a_dense_model_has_none() -> None:
    assert LLM(num_blocks=16).llm_engine.stats.expert_load is None


@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
@pytest.mark.parametrize(
    ("name", "answers"),
    [("mixtral", 12), *(pytest.param(name, 50, marks=pytest.mark.slow) for name in ("mixtral", "qwen3-moe"))],
)
def test_ranks_answer_as_real_vllm_does(name: str, answers: int, tmp_path: Path) -> None:
    """Two ranks, with half of the heads and half of each expert; only one counts."""
    golden = load(name)
    folder = str(tiny.save_tiny(name, tmp_path))
    llm = LLM(folder, tensor_parallel_size=2, **golden["engine_args"])
    chosen = golden["answers"][:answers]
    assert len(chosen) == answers
    params = [SamplingParams(**answer["params"]) for answer in chosen]
    prompts = [{"prompt_token_ids": answer["prompt_token_ids"]} for answer in chosen]
    for answer, output in zip(chosen, llm.generate(prompts, params, use_tqdm=False), strict=True):
        compare(answer, output.outputs[0])
    stats, model = llm.llm_engine.stats, llm.llm_engine.model
    assert stats.expert_load is not None
    assert (stats.expert_load.counts.sum(axis=1) == model.config.moe.top_k * stats.num_scheduled_tokens).all()


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_quantized_experts(name: str, tmp_path: Path) -> None:
    """Eight bits per weight, the router in floats: nearly the same result from less than half of the memory."""
    folder = tiny.save_tiny(name, tmp_path)
    plain, small = load_model(folder), load_model(folder, quantization="int8")
    assert small.weight_nbytes < 0.5 * plain.weight_nbytes  # embeddings, router and norms stay as they are
    x = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    block, quantized = plain.model.layers[0].mlp, small.model.layers[0].mlp
    assert (block.gate.weight == quantized.gate.weight).all()
    expected, found = block.forward(x), quantized.forward(x)
    assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_config_errors() -> None:
    base = dict(tiny.FAMILIES["mixtral"])
    with pytest.raises(ValueError, match=r"num_experts_per_tok \(9\) is more than the number of experts, 8"):
        HFConfig.from_dict({**base, "num_experts_per_tok": 9})
    with pytest.raises(ValueError, match="shared_expert_intermediate_size = 64 is not supported"):
        HFConfig.from_dict({**tiny.FAMILIES["qwen3-moe"], "shared_expert_intermediate_size": 64})
    with pytest.raises(ValueError, match="num_local_experts must be a whole number of at least 1, got None"):
        HFConfig.from_dict({**base, "num_local_experts": None})
    del base["num_local_experts"]
    config = HFConfig.from_dict({**base, "rope_theta": None})
    assert config.rope.theta == 1e6 and config.moe is not None and config.moe.num_experts == 8


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = tiny.save_tiny("mixtral", tmp_path)
    weights = tiny.make_weights("mixtral")
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    del weights[name]
    tiny.save_safetensors(folder / "model.safetensors", weights)
    with pytest.raises(CheckpointError, match=name):
        load_model(folder)


def stacked(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A Mixtral's tensors as transformers 5 holds them: all experts of a layer in two."""
    out = {n.replace("block_sparse_moe.gate", "mlp.gate"): w for n, w in weights.items() if ".experts." not in n}
    for i in range(tiny.LAYERS):
        experts = [f"model.layers.{i}.block_sparse_moe.experts.{e}." for e in range(8)]
        gate_up = [np.concatenate([weights[e + "w1.weight"], weights[e + "w3.weight"]]) for e in experts]
        out[f"model.layers.{i}.mlp.experts.gate_up_proj"] = np.stack(gate_up)
        out[f"model.layers.{i}.mlp.experts.down_proj"] = np.stack([weights[e + "w2.weight"] for e in experts])
    return out


def test_both_layouts_of_a_checkpoint(tmp_path: Path) -> None:
    one_by_one, folder = tiny.save_tiny("mixtral", tmp_path / "one"), tiny.save_tiny("mixtral", tmp_path / "stacked")
    tiny.save_safetensors(folder / "model.safetensors", stacked(tiny.make_weights("mixtral")))
    first, second = load_model(one_by_one), load_model(folder)
    assert first.num_parameters == second.num_parameters
    for a, b in zip(first.model.layers, second.model.layers, strict=True):
        assert (a.mlp.gate.weight == b.mlp.gate.weight).all()
        assert (a.mlp.experts.w13 == b.mlp.experts.w13).all() and (a.mlp.experts.w2 == b.mlp.experts.w2).all()
    with pytest.raises(CheckpointError, match=r"stacked experts \(mlp\.experts\.gate_up_proj\) cannot be quantized"):
        load_model(folder, quantization="int8")
