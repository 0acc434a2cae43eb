"""The reference libraries packed these tensors; ours must stand for the same floats, and the engine give the same odds.

Recorded by `golden/record_quantization.py`; nothing here needs torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.backends.registry import get_attention_backend
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.layers.linear import Linear
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.layers.quantization.nf4 import (
    DYNAMIC_LEVELS,
    dequantize_nf4,
    dequantize_scales,
    pack_nf4,
    quantize_nf4,
    quantize_scales,
)
from mini_vllm.layers.quantization.utils.fp8_utils import decode_e4m3, encode_e4m3
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.parameter import ArraySource
from mini_vllm.tests.golden.record_quantization import ENGINES, HERE, PROMPT
from mini_vllm.tests.layers.quantization.quantized_checkpoints import save_quantized
from mini_vllm.utils.arrays import Array

VLLM = np.load(HERE / "quantization-vllm.npz")
BNB = np.load(HERE / "quantization-bitsandbytes.npz")


def tensors_of(case: str) -> dict[str, Array]:
    """The tensors of one recorded projection, floats left out."""
    names = [name for name in VLLM.files if name.startswith(case + ".") and not name.endswith("floats")]
    return {name.partition(".")[2]: VLLM[name] for name in names}


def gptq(bits: int, desc_act: bool = False) -> dict[str, Any]:
    """A GPTQ config."""
    return {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": desc_act, "sym": True}


def ct(form: str, **weights: Any) -> dict[str, Any]:
    """A compressed-tensors config."""
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


GROUPS = {"num_bits": 4, "strategy": "group", "group_size": 32}
CASES: dict[str, dict[str, Any]] = {
    "gptq4": gptq(4),
    "gptq8": gptq(8),
    "desc_act": gptq(4, desc_act=True),
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True},
    "ct_int8": ct("int-quantized", num_bits=8, strategy="channel"),
    "ct_fp8": ct("float-quantized", num_bits=8, type="float", strategy="channel"),
    "ct_w4": ct("pack-quantized", **GROUPS),
    "ct_w4_asym": ct("pack-quantized", **GROUPS, symmetric=False),
    "ct_w4_actorder": ct("pack-quantized", **GROUPS, actorder="group"),
    "ct_w8": ct("pack-quantized", num_bits=8, strategy="channel"),
}


def load_case(case: str) -> Linear:
    """The recorded tensors in a `Linear`."""
    config = CASES[case]
    linear = Linear(128, 16, get_quantization_config(config["quant_method"]).from_config(config), "layer")
    linear[:].load(ArraySource(tensors_of(case)))
    linear.process_weights_after_loading()
    return linear


@pytest.mark.parametrize("case", CASES)
def test_packed_tensors_stand_for_the_same_floats(case: str) -> None:
    expected = VLLM[f"{case}.floats"]
    expected = expected if expected.shape == (16, 128) else expected.T  # upstream's helpers have [in, out]
    np.testing.assert_array_equal(load_case(case).dequantized(), expected)


@pytest.mark.parametrize("case", CASES)
def test_the_product_is_that_of_the_floats(case: str) -> None:
    linear = load_case(case)
    x = np.random.default_rng(9).standard_normal((7, 128)).astype(np.float32)
    np.testing.assert_allclose(linear(x), x @ linear.dequantized().T, rtol=1e-4, atol=1e-4)


def test_fp8_has_the_bits_of_torch() -> None:
    np.testing.assert_array_equal(decode_e4m3(np.arange(256, dtype=np.uint8)), VLLM["fp8.values"])
    np.testing.assert_array_equal(encode_e4m3(VLLM["fp8.x"]), VLLM["fp8.codes"])


def test_nf4_has_the_bits_of_bitsandbytes() -> None:
    W = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    codes, absmax = quantize_nf4(W)
    np.testing.assert_array_equal(pack_nf4(codes).ravel(), BNB["packed"].ravel())
    np.testing.assert_array_equal(absmax.ravel(), BNB["absmax"].ravel())
    np.testing.assert_array_equal(dequantize_nf4(codes, absmax)[:8], BNB["floats"])


def test_double_quantization_is_that_of_bitsandbytes() -> None:
    W = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    codes, absmax = quantize_nf4(W)
    scale_codes, scales, offset = quantize_scales(absmax)
    np.testing.assert_allclose(DYNAMIC_LEVELS, BNB["double.levels"], atol=1e-7)
    assert offset == pytest.approx(float(BNB["double.offset"]), abs=1e-6)
    np.testing.assert_allclose(scales, BNB["double.scales"].ravel(), atol=1e-6)
    theirs = BNB["double.absmax"].reshape(scale_codes.shape)
    # Their mean is summed in another order; where a scale lies between two levels, that decides.
    assert np.abs(scale_codes.astype(int) - theirs).max() <= 1 and (scale_codes == theirs).mean() > 0.99
    floats = dequantize_nf4(codes, dequantize_scales(theirs, BNB["double.scales"].ravel(), float(BNB["double.offset"])))
    np.testing.assert_allclose(floats[:8], BNB["double.floats"], atol=2e-6)


def prompt_logprobs(folder: Path, prompt: list[int]) -> Array:
    """Log-probability of each prompt token but the first, by our model over a fresh cache."""
    model, length = load_model(folder), len(prompt)
    blocks = -(-length // 16)
    cache = KVCache(model.num_layers, blocks + 1, 16, model.num_kv_heads, model.head_dim)
    backend = get_attention_backend()(cache, model.num_heads, model.sliding_windows)
    positions = np.arange(length)
    metadata = AttentionMetadata(
        np.array([0, length]), np.array([length]), np.arange(1, blocks + 1)[None], positions + 16
    )
    hidden = model.forward(np.array(prompt), positions, backend.begin_step(metadata))
    logits = model.compute_logits(hidden).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits[np.arange(length - 1), prompt[1:]]


@pytest.mark.parametrize("layout", ENGINES)
def test_the_real_engine_gives_the_same_odds(layout: str, tmp_path: Path) -> None:
    """W8A8 runs there in float32, and agrees to rounding; the packed formats run in bfloat16 on a CPU, eight bits of
    mantissa, and log-probabilities differ by that much."""
    save_quantized(layout, tmp_path)
    difference = np.abs(prompt_logprobs(tmp_path, PROMPT) - VLLM[f"logprobs.{layout}"])
    if ENGINES[layout] == "float32":
        assert difference.max() < 1e-4
    else:
        assert difference.mean() < 0.03 and difference.max() < 0.15


def test_the_recording_says_where_it_comes_from() -> None:
    assert json.loads(str(VLLM["provenance"]))["vllm"].startswith("0.22.1")
    assert json.loads(str(BNB["provenance"]))["bitsandbytes"]
