"""Sizes of a format are checked where a checkpoint is named: before a weight is read, or a process is started."""

from __future__ import annotations

import json

import pytest

from mini_vllm.config.vllm import EngineConfig
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.model_loader.checkpoint import resolve_model
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

GPTQ = {"quant_method": "gptq", "bits": 4, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True}
FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic"}
GROUPS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 48}
PACKED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUPS}},
}  # fmt: skip
UNEVEN = "must leave an even number of inputs of model.layers.0.mlp.down_proj to each rank, got 2 for 90"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """64 hidden, 96 inner numbers. No weight of it is read here: they are floats, whatever its config says."""
    return save_tiny("llama", tmp_path_factory.mktemp("base"))


def resolve(folder, tmp_path, of_checkpoint=None, sizes=None, **settings):
    raw = json.loads((folder / "config.json").read_text())
    raw.update(sizes or {}, **({} if of_checkpoint is None else {"quantization_config": of_checkpoint}))
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return resolve_model(tmp_path, None, EngineConfig(skip_tokenizer_init=True, **settings))


@pytest.mark.parametrize(
    "of_checkpoint, settings, said",
    [
        ({**GPTQ, "group_size": 48}, {}, "group_size must divide the 64 inputs of model.layers.0.self_attn.qkv_proj"),
        ({**AWQ, "group_size": 48}, {}, "group_size must divide the 64 inputs"),
        ({**AWQ, "q_group_size": 64}, {}, "group_size must divide the 96 inputs of model.layers.0.mlp.down_proj"),
        ({**FP8_BLOCKS, "weight_block_size": [16, 48]}, {}, "the 64 inputs of model.layers.0.self_attn.qkv_proj must"),
        (PACKED, {}, "group_size must divide the 64 inputs"),
        (None, {"quantization": "int4", "quantization_config": {"group_size": 48}}, 'set quantization_config={"group_'),
        (None, {"quantization": "nf4", "quantization_config": {"block_size": 7}}, "block_size must divide the 64"),
        (None, {"quantization": "nf4", "quantization_config": {"block_size": "64"}}, "got '64'"),
        (None, {"quantization": "int4", "quantization_config": {"group_size": True}}, "got True"),
        (None, {"quantization": "int8", "quantization_config": {"ignored_layers": "q_proj"}}, "a list of texts"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {}, "quant_method 'bitsandbytes' is not supported"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_groups_that_do_not_divide_a_row(folder, tmp_path, of_checkpoint, settings, said, ranks):
    with pytest.raises(ValueError) as refusal:
        resolve(folder, tmp_path, of_checkpoint, tensor_parallel_size=ranks, **settings)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    "of_checkpoint, settings, said",
    [
        ({**GPTQ, "group_size": 2}, {}, UNEVEN),
        (None, {"quantization": "nf4", "quantization_config": {"block_size": 2}}, UNEVEN),
        ({**FP8_BLOCKS, "weight_block_size": [2, 2]}, {}, "Weight input_size_per_partition = 45 is not divisible"),
    ],
)
def test_a_cut_that_goes_through_a_group(folder, tmp_path, of_checkpoint, settings, said):
    sizes = {"intermediate_size": 90}
    resolve(folder, tmp_path, of_checkpoint, sizes, **settings)
    with pytest.raises(ValueError) as refusal:
        resolve(folder, tmp_path, of_checkpoint, sizes, tensor_parallel_size=2, **settings)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    "of_checkpoint, said",
    [
        ({**AWQ, "group_size": 16, "q_group_size": 32}, "q_group_size and group_size disagree: [32, 16]"),
        ({**AWQ, "w_bit": 8, "group_size": 16}, "w_bit and bits disagree: [8, 4]"),
        ({**GPTQ, "group_size": 16, "format": "gptq", "checkpoint_format": "gptq_v2"}, "checkpoint_format and format"),
        ({**FP8_BLOCKS, "ignored_layers": ["a"], "modules_to_not_convert": ["b"]}, "ignored_layers and modules_to_not"),
    ],
)
def test_two_spellings_of_one_key_must_agree(folder, tmp_path, of_checkpoint, said):
    with pytest.raises(ValueError) as refusal:
        resolve(folder, tmp_path, of_checkpoint)
    assert said in str(refusal.value)
    both = {"compression_config": {**GPTQ, "group_size": 8}, "quantization_config": {**GPTQ, "group_size": 16}}
    with pytest.raises(ValueError, match="quantization_config and compression_config disagree"):
        resolve(folder, tmp_path, sizes=both)
    assert QuantizationConfig.get_from_keys({"a": 1, "b": 1}, ["a", "b"]) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_groups_of_a_draft_model(folder, tmp_path, ranks):
    (tmp_path / "draft").mkdir()
    raw = json.loads((folder / "config.json").read_text())
    changed = {**raw, "quantization_config": {**GPTQ, "group_size": 48}}
    (tmp_path / "draft" / "config.json").write_text(json.dumps(changed))
    drafts = {"model": str(tmp_path / "draft"), "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match="group_size must divide the 64 inputs"):
        resolve(folder, tmp_path, speculative_config=drafts, tensor_parallel_size=ranks)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"max_loras": 10**9}, "max_loras=1000000000 with max_lora_rank=16"),
        ({"lora_target_modules": ["k"]}, r"LlamaForCausalLM has no projection named \['k'\] that can have adapters"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_buffers_of_adapters(folder, tmp_path, settings, said, ranks):
    with pytest.raises(ValueError, match=said):
        resolve(folder, tmp_path, enable_lora=True, tensor_parallel_size=ranks, **settings)


@pytest.mark.parametrize("quantization", [None, "int8", "gptq"])
def test_modelopts_file_is_not_passed_over(folder, tmp_path, quantization):
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    with pytest.raises(ValueError, match=r"hf_quant_config.json: modelopt says here .* are not supported; allowed: a"):
        resolve(folder, tmp_path, quantization=quantization)
    resolve(folder, tmp_path, {**GPTQ, "group_size": 16})  # upstream reads it only where config.json says nothing


def test_a_file_of_its_own_is_read_as_every_other(folder, tmp_path):
    """`quantize_config.json`, where older writers put it."""
    (tmp_path / "quantize_config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"quantize_config.json must hold a JSON object, got list"):
        resolve(folder, tmp_path, quantization="gptq")
    (tmp_path / "quantize_config.json").write_text(json.dumps({**GPTQ, "group_size": 48}))
    with pytest.raises(ValueError, match="group_size must divide the 64 inputs"):
        resolve(folder, tmp_path, quantization="gptq")
