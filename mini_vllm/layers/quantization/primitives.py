"""The arithmetic of integer quantization: a scale, a rounded code, and who shares the scale.

Everything is symmetric unless it says otherwise: `w ~ scale * code`, code 0 is exactly 0, and codes run from -max to
+max (the one more negative code that two's complement has is left out). Weights are [out, in], as checkpoints store
them. Upstream twin: `vllm/model_executor/layers/quantization/utils/quant_utils.py`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array

INT8_MAX, INT4_MAX = 127, 7
INT4_OFFSET = 8
"""A packed nibble holds code + 8: upstream/vllm/scalar_type.py:350 — "uint4b8"."""
LOAD_ROWS = 256
"""Rows of a float checkpoint that are quantized at a time."""


def scale_for(largest: Array, code_max: float) -> Array:
    """The scale that maps the largest magnitude to the largest code; 1 where all is zero, so that 0 / scale is 0."""
    scale = np.asarray(largest / code_max)
    return np.where(scale > 0, scale, scale.dtype.type(1))


def _codes(W: Array, scale: Array | float, code_max: int) -> Array:
    """round(W / scale), half to even, clipped after rounding: 127.6 rounds to 128, which int8 does not have."""
    return np.clip(np.rint(W / scale), -code_max, code_max).astype(np.int8)


def quantize_per_tensor(W: Array) -> tuple[Array, float]:
    """int8 codes of the shape of W, and the one scale of all of them."""
    scale = float(scale_for(np.abs(W).max(initial=0.0), INT8_MAX))
    return _codes(W, scale, INT8_MAX), scale


def quantize_per_channel(W: Array) -> tuple[Array, Array]:
    """int8 codes [out, in] and a scale for each output row [out].

    A row's scale leaves the dot product, so a kernel multiplies once per output, after the integer sum.
    """
    scales = scale_for(np.abs(W).max(axis=1, initial=0.0), INT8_MAX)
    return _codes(W, scales[:, None], INT8_MAX), scales


def dequantize(q: Array, scale: Array | float) -> Array:
    """`scale * q`: one scale, or one for each row of q [out, in]."""
    scale = np.asarray(scale)
    return q * (scale[:, None] if scale.ndim == 1 else scale)


def fake_quant(W: Array) -> Array:
    """W after a round trip through int8 with one scale: the rounding error alone, in floats."""
    return dequantize(*quantize_per_tensor(W))


def check_group_size(in_features: int, group_size: int, where: str = "") -> int:
    """The group size, -1 meaning a whole row.

    Raises:
        ValueError: groups do not divide the row evenly.
    """
    size = in_features if group_size == -1 else group_size
    if size < 1 or in_features % size:
        raise ValueError(f"group_size must divide the {in_features} inputs{where} evenly (or be -1), got {group_size}")
    return size


def quantize_grouped(W: Array, group_size: int) -> tuple[Array, Array]:
    """int4 codes [out, in] in int8, from -7 to 7, and a scale for each group of a row [out, in / group_size].

    Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:556 — `quantize_weights`, which
    also uses code -8 and works on [in, out].
    """
    size = check_group_size(W.shape[1], group_size)
    groups = W.reshape(len(W), -1, size)
    scales = scale_for(np.abs(groups).max(axis=2), INT4_MAX)
    return _codes(groups, scales[:, :, None], INT4_MAX).reshape(W.shape), scales


def dequantize_grouped(q: Array, scales: Array, group_size: int, zeros: Array | int = 0) -> Array:
    """`scale * (code - zero)`. q [out, in]; scales, and zeros where they are an array, [out, in / group_size]."""
    groups = q.reshape(len(q), -1, check_group_size(q.shape[1], group_size))
    shift = zeros if isinstance(zeros, int) else zeros[:, :, None].astype(scales.dtype)
    return ((groups - shift) * scales[:, :, None]).reshape(q.shape)


def quantize_grouped_asymmetric(W: Array, group_size: int, bits: int = 4) -> tuple[Array, Array, Array]:
    """Unsigned codes [out, in], scales and zero points [out, in / group_size]: `w ~ scale * (code - zero)`.

    The range of a group, from its least to its greatest weight, is spread over all 2^bits codes.
    """
    size, top = check_group_size(W.shape[1], group_size), 2**bits - 1
    groups = W.reshape(len(W), -1, size)
    least, greatest = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
    scales = scale_for(greatest - least, top)
    zeros = np.clip(np.rint(-least / scales), 0, top).astype(np.uint8)
    codes = np.clip(np.rint(groups / scales[:, :, None]) + zeros[:, :, None], 0, top)
    return codes.astype(np.uint8).reshape(W.shape), scales, zeros


def pack_nibbles(codes: Array) -> Array:
    """Unsigned codes 0..15 [..., n] -> uint8 [..., n / 2]; even places in the low half of a byte, odd ones above.

    Eight of these in a row, read as one little-endian int32, are the sequential packing of compressed-tensors and GPTQ.
    """
    if codes.shape[-1] % 2:
        raise ValueError(f"two codes share a byte, so their number must be even, got {codes.shape[-1]}")
    codes = codes.astype(np.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Array) -> Array:
    """uint8 [..., n] -> unsigned codes 0..15, uint8 [..., 2n]."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def pack_int4(q: Array) -> Array:
    """Signed codes -8..7 [out, in] -> uint8 [out, in / 2], each as code + 8 in four bits."""
    return pack_nibbles(q + np.int8(INT4_OFFSET))


def unpack_int4(packed: Array) -> Array:
    """uint8 [out, in / 2] -> signed codes, int8 [out, in]."""
    return unpack_nibbles(packed).astype(np.int8) - np.int8(INT4_OFFSET)


def check_setting(name: str, size: int, input_size: int, prefix: str) -> None:
    """Refuses groups that do not divide a row, with a setting that does.

    Raises:
        ValueError: names the setting, the value and one that would do.
    """
    if size != -1 and (size < 1 or input_size % size):
        raise ValueError(
            f"{name} must divide the {input_size} inputs of {prefix} evenly (or be -1), got {size}; "
            f'set quantization_config={{"{name}": {math.gcd(input_size, 32)}}}'
        )


def check_pairs(layer: Any, size: int) -> None:
    """Refuses a number of inputs that leaves half a byte of 4-bit codes to a rank."""
    if size % 2:
        raise ValueError(
            f"tensor_parallel_size must leave an even number of inputs of {layer.prefix} to each rank, got "
            f"{layer.context.tp_size} for {layer.input_size}"
        )


@lru_cache(maxsize=8)
def pair_table(levels: tuple[float, ...], dtype: Any, first_is_low: bool) -> Array:
    """For each byte of two codes its two values, side by side, as one complex number: one look-up gives both."""
    byte = np.arange(256)
    low, high = np.array(levels, dtype)[byte & 15], np.array(levels, dtype)[byte >> 4]
    pair = np.stack([low, high] if first_is_low else [high, low], axis=1)
    return np.ascontiguousarray(pair).view(np.result_type(dtype, np.complex64))[:, 0]


def decode_pairs(packed: Array, levels: tuple[float, ...], out: Array, first_is_low: bool = True) -> None:
    """Packed bytes [rows, n / 2] -> the values of their codes [rows, n], into `out`."""
    table = pair_table(levels, out.dtype, first_is_low)
    table.take(packed, out=out.view(table.dtype), mode="clip")
