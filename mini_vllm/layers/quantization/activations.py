"""Rounding the activations too (W8A8): they exist only at run time, so their scales are found there, per token.

x is [in, tokens], as everywhere in the models. Upstream twins: `vllm/model_executor/layers/quantization/
input_quant_fp8.py`, and `scaled_int8_quant` in `vllm/_custom_ops.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.layers.quantization.utils.fp8_utils import decode_e4m3, fp8_scale, quantize_fp8
from mini_vllm.utils.arrays import Array


@dataclass(frozen=True)
class ActivationScheme:
    """How a layer's input is rounded.

    Attributes:
        code: "int8" or "fp8".
        static: one scale for all inputs, from the checkpoint's `input_scale`; otherwise one for each token, found from
            its largest magnitude.
        symmetric: without it int8 codes have a zero point; fp8 is always symmetric.
        group_size: inputs of a token that share a scale, for weights in 2D blocks; None: all of them.
    """

    code: str
    static: bool = False
    symmetric: bool = True
    group_size: int | None = None


def quantize_activations(x: Array, scheme: ActivationScheme, input_scale: float = 1.0) -> tuple[Array, Array | float]:
    """Rounded input in units of its scale, and the scale: `x ~ values * scale`.

    Args:
        x: [in, tokens]. input_scale: for a static scheme.

    Returns:
        values [in, tokens], of x's dtype: whole numbers for int8 (zero point taken off), E4M3 numbers for fp8; the
        scale, a number or [1, tokens]. Scales of groups cannot leave the dot product: they are in the values already.
    """
    scale: Any
    if scheme.group_size is not None:
        groups = x.reshape(-1, scheme.group_size, x.shape[1])
        codes, scale = quantize_fp8(groups, fp8_scale(np.abs(groups).max(axis=1, keepdims=True)))
        return (decode_e4m3(codes, out=np.empty_like(groups, order="C")) * scale).reshape(x.shape), 1.0
    if scheme.code == "fp8":
        scale = input_scale if scheme.static else fp8_scale(np.abs(x).max(axis=0, keepdims=True))
        codes, _ = quantize_fp8(x, scale)
        return decode_e4m3(codes, out=np.empty_like(x, order="C")), scale
    if not scheme.symmetric:
        return _int8_asymmetric(x)
    scale = input_scale if scheme.static else np.abs(x).max(axis=0, keepdims=True) / x.dtype.type(127)
    values = x / np.where(scale > 0, scale, x.dtype.type(1))
    np.rint(values, out=values)
    return np.clip(values, -128, 127, out=values), scale


def _int8_asymmetric(x: Array) -> tuple[Array, Array]:
    """The range of each token, from least to greatest, over all 256 codes; the zero point is taken off again."""
    least, greatest = x.min(axis=0, keepdims=True), x.max(axis=0, keepdims=True)
    scale = (greatest - least) / x.dtype.type(255)
    scale = np.where(scale > 0, scale, x.dtype.type(1))
    zero = np.rint(-128 - least / scale)
    return np.clip(np.rint(x / scale) + zero, -128, 127) - zero, scale
