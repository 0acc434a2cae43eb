"""Truths of the quantization playground, by the engine's own functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm import decode_e4m3, dequantize_grouped, quantize_grouped
from mini_vllm.layers.quantization.utils.fp8_utils import encode_e4m3
from mini_vllm.utils.arrays import Array

WEIGHTS = [0.7, 0.26, -0.4, 0.12, -0.05, 0.55, -0.31, 0.48]


def bf16(x: Array) -> Array:
    """float32 to bf16 codes, uint16: to nearest, ties to even. NaN is not expected."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(codes: Array) -> Array:
    """What bf16 codes mean, float32."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def through_fp8(x: float) -> float:
    """A number in fp8 and back."""
    return float(decode_e4m3(encode_e4m3(np.float32([x])))[0])


def record() -> dict[str, Any]:
    """Answers, and the weights of the group."""
    values = decode_e4m3(np.arange(127, dtype=np.uint8))
    one = encode_e4m3(np.float32([1.0]))
    loud = np.array([[7.0, *WEIGHTS[1:]]])
    calm = np.array([WEIGHTS])
    codes, scales = quantize_grouped(calm, 8)
    answers = {
        "tenth": repr(through_fp8(0.1)),
        "between": int(((values >= 1) & (values < 2)).sum()),
        "largest": f"{through_fp8(1000.0):g}",
        "flip": f"{decode_e4m3(one ^ np.uint8(8))[0]:g}",
        "swallow": f"{from_bf16(bf16(np.float32([1.003])))[0]:g}",
        "int4": f"{dequantize_grouped(codes, scales, 8)[0, 1]:g}",
        "outlier": int((quantize_grouped(loud, 8)[0][0, 1:] == 0).sum()),
    }
    return {"answers": answers, "weights": WEIGHTS}
