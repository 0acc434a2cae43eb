"""Checkpoints of compressed-tensors, GPTQ and AWQ: what is loaded is what the codes stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.layers.quantization.base_config import shard_names
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import STORED, Checkpoint, CheckpointError
from mini_vllm.models.interfaces_base import linears_of
from mini_vllm.tests.layers.quantization.quantized_checkpoints import (
    LAYOUTS,
    ROUNDS_ACTIVATIONS,
    WEIGHTS_ONLY,
    save_quantized,
)
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES, make_weights, save_safetensors

PROMPTS = [{"prompt_token_ids": [1, 5, 300, 7, 9, 200]}, {"prompt_token_ids": list(range(3, 40))}]


def save_floats(folder: Path, floats: dict[str, np.ndarray]) -> Path:
    """The same model without quantization."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FAMILIES["llama"]))
    save_safetensors(folder / "model.safetensors", floats)
    return folder


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Change keys of quantization_config."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_projection_stands_for_the_right_floats(layout: str, tmp_path: Path) -> None:
    floats = save_quantized(layout, tmp_path)
    model = load_model(tmp_path)
    linears = linears_of(dest for _, dest in model.weights())
    assert len(linears) == 4 * model.num_layers
    for linear in linears:
        expected = np.concatenate([floats[f"{shard}.weight"] for shard in shard_names(linear.prefix)])
        np.testing.assert_allclose(linear.dequantized(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("layout", WEIGHTS_ONLY)
def test_tokens_are_those_of_the_dequantized_model(layout: str, tmp_path: Path) -> None:
    floats = save_quantized(layout, tmp_path / "quantized")
    save_floats(tmp_path / "floats", floats)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers = []
    for folder in ("quantized", "floats"):
        llm = LLM(str(tmp_path / folder), dtype="float64", num_blocks=32)
        answers.append([out.outputs[0].token_ids for out in llm.generate(PROMPTS, params, use_tqdm=False)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("layout", ROUNDS_ACTIVATIONS)
def test_rounded_activations_change_the_result_a_little(layout: str, tmp_path: Path) -> None:
    floats = save_quantized(layout, tmp_path / layout)
    exact = load_model(save_floats(tmp_path / "floats", floats))
    rounded = load_model(tmp_path / layout)
    x = np.random.default_rng(0).standard_normal((exact.config.hidden_size, 5)).astype(np.float32)
    expected = exact.model.layers[0].mlp.gate_up_proj(x.T)
    out = rounded.model.layers[0].mlp.gate_up_proj(x.T)
    error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
    assert 1e-3 < error < (0.02 if layout == "ct-w8a8" else 0.05)


def test_codes_stay_codes(tmp_path: Path) -> None:
    save_quantized("ct-w4a16", tmp_path)
    down = load_model(tmp_path).model.layers[0].mlp.down_proj
    assert down.weight_packed.dtype == np.uint8 and down.weight_packed.size * 2 == down.size
    assert down.nbytes == down.size / 2 + 2 * down.size / 32


def test_the_argument_must_agree_with_the_checkpoint(tmp_path: Path) -> None:
    save_quantized("gptq", tmp_path)
    load_model(tmp_path, quantization="gptq_marlin")
    with pytest.raises(ValueError, match=r"model config \(gptq\) does not match .* `quantization` argument \(awq\)"):
        load_model(tmp_path, quantization="awq")
    with pytest.raises(ValueError, match="quantization_config is for float checkpoints"):
        load_model(tmp_path, quantization_config={"group_size": 64})


def test_a_float_checkpoint_is_not_gptq(tmp_path: Path) -> None:
    save_floats(tmp_path / "floats", save_quantized("gptq", tmp_path / "q"))
    with pytest.raises(ValueError, match="needs a checkpoint in that format"):
        load_model(tmp_path / "floats", quantization="gptq")


def test_the_config_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    save_quantized("gptq", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "quantize_config.json").write_text(json.dumps(config.pop("quantization_config")))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path, quantization="gptq").quant_config.bits == 4


UNSUPPORTED = [
    ("gptq", {"quant_method": "aqlm"}, "quant_method 'aqlm' is not supported"),
    ("gptq", {"bits": 3}, "bits must be 4 or 8, got 3"),
    ("gptq", {"group_size": 48}, "group_size must divide the 64 inputs of model.layers.0.self_attn.qkv_proj"),
    ("gptq", {"group_size": 0}, "group_size must be a whole number of at least 1, or -1 for a whole row, got 0"),
    ("gptq", {"group_size": "16"}, "group_size must be a whole number"),
    ("gptq", {"sym": "false"}, "sym must be true or false, got 'false'"),
    ("gptq", {"w_bit": 4}, "unknown key 'w_bit' = 4: it could change what is computed"),
    ("ct-int8", {"sparsity_config": {"format": "sparse-24", "targets": ["Linear"]}}, "sparsity_config must be empty"),
    ("gptq", {"lm_head": True}, "lm_head must be False, got True: it is not supported for gptq"),
    ("awq", {"bits": 8}, "only 4-bit weight quantization is supported for AWQ, but got 8 bits"),
    ("awq", {"version": "gemv"}, "version must be 'gemm' or 'GEMM', got 'gemv': it is another order"),
    (
        "ct-int8",
        {"kv_cache_scheme": {"num_bits": 8}},
        "kv_cache_scheme must be empty, got .*: scales of a KV",
    ),
    ("ct-int8", {"config_groups": {"g": {"targets": ["Linear"]}}}, "g of config_groups must have weights"),
    ("ct-int8", {"format": "marlin-24"}, "No compressed-tensors compatible scheme was found"),
    ("fp8-blocks", {"weight_block_size": [32, 48]}, "the 64 inputs of .* must divide by the block's 48"),
    ("fp8-blocks", {"activation_scheme": "static"}, "must be 'dynamic' with weight_block_size"),
    ("fp8", {"activation_scheme": "block"}, "activation_scheme must be 'static' or 'dynamic', got 'block'"),
]


@pytest.mark.parametrize(("layout", "changes", "message"), UNSUPPORTED)
def test_what_is_not_supported_is_an_error_by_name(
    layout: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_quantized(layout, tmp_path)
    rewrite_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_wrong_tensors_are_errors_by_name(tmp_path: Path) -> None:
    save_quantized("gptq", tmp_path)
    settings = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    with pytest.raises(ValueError, match=r"11 tensor\(s\)|tensor\(s\) that LlamaForCausalLM with awq does not use"):
        load_model(tmp_path)


def test_part_of_a_fused_projection_cannot_be_left_out(tmp_path: Path) -> None:
    save_quantized("ct-int8", tmp_path)
    rewrite_config(tmp_path, ignore=["model.layers.1.self_attn.k_proj"])
    with pytest.raises(ValueError, match=r"different quantization schemes for .*q_proj"):
        load_model(tmp_path)


def retype(folder: Path, name: str, dtype: str) -> None:
    """Let the header call a tensor's bytes by another dtype of the same size."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header[name]["dtype"] = dtype
    blob = json.dumps(header).encode()
    path.write_bytes(len(blob).to_bytes(8, "little") + blob + raw[8 + size :])


Q_PROJ = "model.layers.0.self_attn.q_proj."
NOT_AS_ASKED = [
    ("fp8", "weight", "U8", "has dtype U8; allowed: F8_E4M3 .quantization_config of config.json says fp8"),
    ("ct-fp8", "weight", "I8", "has dtype I8; allowed: F8_E4M3 .quantization_config .* says compressed-tensors"),
    ("ct-int8", "weight", "F8_E4M3", "has dtype F8_E4M3; allowed: I8"),
    ("gptq", "qweight", "F32", "has dtype F32; allowed: I32"),
    ("gptq-asym", "qzeros", "F32", "has dtype F32; allowed: I32"),
    ("gptq-desc-act", "g_idx", "F32", "has dtype F32; allowed: I32, I64"),
    ("awq", "qweight", "F32", "has dtype F32; allowed: I32"),
    ("awq", "scales", "F8_E4M3", "has dtype F8_E4M3; allowed: F64, F32, F16, BF16"),
    ("ct-w4a16-asym", "weight_zero_point", "F32", "has dtype F32; allowed: I32"),
    ("fp8", "weight_scale", "F8_E4M3", "has dtype F8_E4M3; allowed: F64, F32, F16, BF16"),
    ("ct-fp8", "weight_scale", "F8_E4M3", "has dtype F8_E4M3; allowed: F64, F32, F16, BF16"),
    ("ct-w8a16", "weight_scale", "I8", "has dtype I8; allowed: F64, F32, F16, BF16"),
    ("fp8-static", "input_scale", "U8", "has dtype U8; allowed: F64, F32, F16, BF16"),
]


@pytest.mark.parametrize(("layout", "tensor", "dtype", "message"), NOT_AS_ASKED)
def test_codes_and_numbers_are_not_taken_for_each_other(
    layout: str, tensor: str, dtype: str, message: str, tmp_path: Path
) -> None:
    save_quantized(layout, tmp_path)
    name, size = Q_PROJ + tensor, np.dtype(STORED[dtype]).itemsize
    with Checkpoint(tmp_path) as checkpoint:
        tensors = {each: checkpoint.read_stored(each, STORED) for each in checkpoint.names()}
    if tensors[name].itemsize != size:
        tensors[name] = tensors[name].astype(STORED[dtype])
    write_safetensors(tmp_path / "model.safetensors", tensors)
    retype(tmp_path, name, dtype)
    with pytest.raises(CheckpointError, match=f"model.safetensors: tensor '{name}' {message}"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("gptq", "tensor 'model.layers.0.*_proj.qweight' is missing .quantization_config of config.json says gptq"),
        ("awq", "tensor 'model.layers.0.*_proj.qweight' is missing .quantization_config of config.json says awq"),
        ("ct-w4a16", "tensor 'model.layers.0.*_proj.weight_shape' is missing .quantization_config"),
        ("fp8", "tensor 'model.layers.0.*_proj.weight' has dtype F32; allowed: F8_E4M3 .quantization_config"),
        ("ct-int8", "tensor 'model.layers.0.*_proj.weight' has dtype F32; allowed: I8 .quantization_config"),
    ],
)
def test_a_format_in_the_config_of_floats(layout: str, said: str, tmp_path: Path) -> None:
    save_quantized(layout, tmp_path)
    write_safetensors(tmp_path / "model.safetensors", make_weights("llama", 0))
    with pytest.raises(CheckpointError, match=said):
        load_model(tmp_path)


@pytest.mark.parametrize("layout", ["fp8", "gptq", "awq", "ct-int8"])
def test_letters_of_quant_method(layout: str, tmp_path: Path) -> None:
    save_quantized(layout, tmp_path)
    method = LAYOUTS[layout][0]["quant_method"]
    plain = load_model(tmp_path).model.layers[0].mlp.down_proj
    rewrite_config(tmp_path, quant_method=method.upper())
    upper = load_model(tmp_path).model.layers[0].mlp.down_proj
    assert vars(upper.quant_method).keys() == vars(plain.quant_method).keys()
    np.testing.assert_array_equal(upper.dequantized(), plain.dequantized())


@pytest.mark.parametrize("ignore", ["re:.*layers.1.*", "model.layers.1.mlp.down_proj"])
def test_ignored_layers_are_read_as_floats(ignore: str, tmp_path: Path) -> None:
    floats = save_quantized("ct-int8", tmp_path)
    rewrite_config(tmp_path, ignore=[ignore])
    with Checkpoint(tmp_path) as checkpoint:
        tensors = {name: checkpoint.read_stored(name, STORED) for name in checkpoint.names()}
    hit = "layers.1." if ignore.startswith("re:") else ignore
    for name in [n for n in tensors if hit in n and n.endswith("_proj.weight")]:
        tensors[name] = floats[name]
        del tensors[name + "_scale"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    model = load_model(tmp_path)
    assert model.model.layers[1].mlp.down_proj.is_unquantized
    assert model.model.layers[1].self_attn.qkv_proj.is_unquantized == ignore.startswith("re:")
    assert not model.model.layers[0].mlp.down_proj.is_unquantized


def test_a_name_goes_before_the_kind_of_layer() -> None:
    from mini_vllm.layers.quantization.compressed_tensors import CompressedTensorsConfig

    int8, packed = ({"num_bits": 8, "strategy": "channel"}, {"num_bits": 4, "strategy": "group", "group_size": 32})
    groups = {
        "group_0": {"targets": ["Linear"], "weights": packed, "format": "pack-quantized"},
        "group_1": {"targets": ["re:.*down_proj"], "weights": int8, "format": "int-quantized"},
    }
    config = CompressedTensorsConfig.from_config({"config_groups": groups})
    names = {name: config.get_quant_method(f"model.layers.0.mlp.{name}") for name in ("down_proj", "gate_up_proj")}
    assert {name: type(method).__name__ for name, method in names.items()} == {
        "down_proj": "Int8LinearMethod", "gate_up_proj": "WNA16LinearMethod",
    }  # fmt: skip
    only = {"group_0": {**groups["group_0"], "targets": ["re:.*gate_proj", "re:.*up_proj$"]}}
    config = CompressedTensorsConfig.from_config({"config_groups": only})
    assert config.get_scheme("model.layers.0.mlp.gate_up_proj") is not None
    assert config.get_scheme("model.layers.0.mlp.down_proj") is None
