"""Tiny checkpoints in the layouts of compressed-tensors, GPTQ, AWQ and FP8, from numpy alone.

Each is the tiny Llama of `tiny_checkpoints.py` with its projections quantized; `save_quantized` also returns the floats
that they stand for, so that the same model can be loaded without quantization and compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.layers.quantization.primitives import (
    dequantize,
    quantize_grouped_asymmetric,
    quantize_per_channel,
)
from mini_vllm.layers.quantization.repack import awq_pack, gptq_pack, pack_int32
from mini_vllm.layers.quantization.utils.fp8_utils import decode_e4m3, quantize_fp8
from mini_vllm.model_loader.random_checkpoint import to_bf16, write_safetensors
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES, make_weights
from mini_vllm.utils.arrays import Array

Tensors = dict[str, Array]
GROUP = 32


def _act_order(columns: int) -> Array:
    """The group of each input, shuffled as `desc_act` shuffles it: the same for every projection of this width."""
    return np.random.default_rng(columns).permutation(np.arange(columns) // GROUP).astype(np.int32)


def _grouped(W: Array, bits: int, symmetric: bool, g_idx: Array | None = None) -> tuple[Array, Array, Array, Array]:
    """(unsigned codes [out, in], fp16 scales, zero points, floats), inputs in their own order."""
    order = np.arange(W.shape[1]) if g_idx is None else np.argsort(g_idx, kind="stable")
    if symmetric:
        scales = (np.abs(W[:, order].reshape(len(W), -1, GROUP)).max(axis=2) / (2 ** (bits - 1) - 1)).astype(np.float16)
        zeros = np.full(scales.shape, 2 ** (bits - 1), np.uint8)
    else:
        _, scales, zeros = quantize_grouped_asymmetric(W[:, order], GROUP, bits)
        scales = scales.astype(np.float16)
    wide = np.repeat(scales.astype(np.float32), GROUP, axis=1)
    zero = np.repeat(zeros, GROUP, axis=1).astype(np.int64)
    codes = np.empty(W.shape, np.uint8)
    codes[:, order] = np.clip(np.rint(W[:, order] / wide) + zero, 0, 2**bits - 1)
    floats = np.empty(W.shape, np.float32)
    floats[:, order] = (codes[:, order].astype(np.int64) - zero).astype(np.float32) * wide
    return codes, scales, zeros, floats


def _ct_int8(W: Array) -> tuple[Tensors, Array]:
    q, scales = quantize_per_channel(W)
    scales = to_bf16(scales)
    wide = (scales.astype(np.uint32) << 16).view(np.float32)
    return {"weight": q, "weight_scale": scales[:, None]}, dequantize(q, wide)


def _ct_fp8(W: Array) -> tuple[Tensors, Array]:
    scales = np.abs(W).max(axis=1, keepdims=True) / np.float32(448)
    q, _ = quantize_fp8(W, scales)
    return {"weight": q, "weight_scale": scales}, decode_e4m3(q) * scales


def _fp8_per_tensor(W: Array) -> tuple[Tensors, Array]:
    q, scale = quantize_fp8(W)
    return {"weight": q, "weight_scale": np.float32(scale).reshape(())}, decode_e4m3(q) * scale


def _fp8_static(W: Array) -> tuple[Tensors, Array]:
    tensors, floats = _fp8_per_tensor(W)
    return {**tensors, "input_scale": np.float32(0.05).reshape(())}, floats


def _fp8_blocks(W: Array) -> tuple[Tensors, Array]:
    """A scale for each block of 32 by 32."""
    rows, columns = (size // GROUP for size in W.shape)
    blocks = W.reshape(rows, GROUP, columns, GROUP)
    scales = (np.abs(blocks).max(axis=(1, 3), keepdims=True) / 448).astype(np.float32)
    q, _ = quantize_fp8(blocks, scales)
    floats = (decode_e4m3(q) * scales).reshape(W.shape)
    return {"weight": q.reshape(W.shape), "weight_scale_inv": scales.reshape(rows, columns)}, floats


def _ct_packed(bits: int = 4, symmetric: bool = True, act_order: bool = False) -> Callable[[Array], Any]:
    def make(W: Array) -> tuple[Tensors, Array]:
        g_idx = _act_order(W.shape[1]) if act_order else None
        codes, scales, zeros, floats = _grouped(W, bits, symmetric, g_idx)
        tensors = {"weight_packed": pack_int32(codes, bits), "weight_scale": scales,
                   "weight_shape": np.array(W.shape, np.int64)}  # fmt: skip
        if not symmetric:
            tensors["weight_zero_point"] = np.ascontiguousarray(pack_int32(zeros.T, bits).T)
        if g_idx is not None:
            tensors["weight_g_idx"] = g_idx
        return tensors, floats

    return make


def _gptq(bits: int = 4, symmetric: bool = True, act_order: bool = False, v2: bool = False) -> Callable[[Array], Any]:
    def make(W: Array) -> tuple[Tensors, Array]:
        g_idx = _act_order(W.shape[1]) if act_order else (np.arange(W.shape[1]) // GROUP).astype(np.int32)
        codes, scales, zeros, floats = _grouped(W, bits, symmetric, g_idx if act_order else None)
        stored = zeros if v2 else zeros - np.uint8(1)
        tensors = {"qweight": gptq_pack(codes.T, bits), "qzeros": pack_int32(stored.T & np.uint8(2**bits - 1), bits),
                   "scales": np.ascontiguousarray(scales.T), "g_idx": g_idx}  # fmt: skip
        return tensors, floats

    return make


def _awq(W: Array) -> tuple[Tensors, Array]:
    codes, scales, zeros, floats = _grouped(W, 4, False)
    return {"qweight": awq_pack(codes.T), "qzeros": awq_pack(zeros.T), "scales": np.ascontiguousarray(scales.T)}, floats


def _ct_config(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"dynamic": False, **weights}, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": group}, "quantization_status": "compressed"}  # fmt: skip


def _packed_config(bits: int = 4, symmetric: bool = True, actorder: str | None = None) -> dict[str, Any]:
    return _ct_config("pack-quantized", {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group",
                                         "group_size": GROUP, "actorder": actorder})  # fmt: skip


def _gptq_config(bits: int = 4, sym: bool = True, desc_act: bool = False, form: str = "gptq") -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": sym, "desc_act": desc_act,
            "checkpoint_format": form}  # fmt: skip


_TOKEN_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_TOKEN_FP8 = {**_TOKEN_INT8, "type": "float"}
_CHANNEL_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
_CHANNEL_FP8 = {**_CHANNEL_INT8, "type": "float"}

LAYOUTS: dict[str, tuple[dict[str, Any], Callable[[Array], tuple[Tensors, Array]]]] = {
    "ct-int8": (_ct_config("int-quantized", _CHANNEL_INT8), _ct_int8),
    "ct-w8a8": (_ct_config("int-quantized", _CHANNEL_INT8, _TOKEN_INT8), _ct_int8),
    "ct-fp8": (_ct_config("float-quantized", _CHANNEL_FP8), _ct_fp8),
    "ct-fp8-dynamic": (_ct_config("float-quantized", _CHANNEL_FP8, _TOKEN_FP8), _ct_fp8),
    "ct-w4a16": (_packed_config(), _ct_packed()),
    "ct-w4a16-asym": (_packed_config(symmetric=False), _ct_packed(symmetric=False)),
    "ct-w4a16-actorder": (_packed_config(actorder="group"), _ct_packed(act_order=True)),
    "ct-w8a16": (_packed_config(8), _ct_packed(8)),
    "gptq": (_gptq_config(), _gptq()),
    "gptq-8bit": (_gptq_config(8), _gptq(8)),
    "gptq-desc-act": (_gptq_config(desc_act=True), _gptq(act_order=True)),
    "gptq-asym": (_gptq_config(sym=False), _gptq(symmetric=False)),
    "gptq-v2": (_gptq_config(sym=False, form="gptq_v2"), _gptq(symmetric=False, v2=True)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, _awq),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, _fp8_per_tensor),
    "fp8-static": ({"quant_method": "fp8", "activation_scheme": "static"}, _fp8_static),
    "fp8-blocks": ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [GROUP, GROUP]},
                   _fp8_blocks),
}  # fmt: skip
ROUNDS_ACTIVATIONS = ("ct-w8a8", "ct-fp8-dynamic", "fp8", "fp8-static", "fp8-blocks")
WEIGHTS_ONLY = [name for name in LAYOUTS if name not in ROUNDS_ACTIVATIONS]


def save_quantized(layout: str, folder: Path, seed: int = 0) -> dict[str, Array]:
    """Write the tiny Llama in this layout into `folder`; returns its weights as floats, by their ordinary names."""
    config, make = LAYOUTS[layout]
    tensors: Tensors = {}
    floats: dict[str, Array] = {}
    for name, W in make_weights("llama", seed).items():
        floats[name] = W
        if not name.endswith("_proj.weight"):
            tensors[name] = W
            continue
        parts, floats[name] = make(W)
        tensors |= {name.removesuffix("weight") + part: array for part, array in parts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**FAMILIES["llama"], "quantization_config": config}, indent=1))
    write_safetensors(folder / "model.safetensors", tensors)
    return floats
