"""FP8 E4M3 ("fn": finite only), in numpy, bit for bit: sign, 4 bits of exponent, 3 of mantissa, largest value 448.

There are no infinities, and NaN is 0x7F or 0xFF. Steps double with every power of two, so the relative error is at most
1/16 for normal numbers (from 2^-6 on); below that lie eight equal steps of 2^-9 down to zero.
Upstream uses the hardware's conversion or torch's `float8_e4m3fn`, always after clamping to +-448.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.layers.linear_weights import LinearWeights

E4M3_MAX = 448.0
E4M3_SMALLEST_NORMAL = 2.0**-6
_NAN = 0x7F
_REBIAS = (127 - 7) << 3  # exponent bias of float32 against that of E4M3, at the place of the code's exponent
_ROUND_DENORMAL = np.float32(2.0**14)  # numbers from 2^14 on have a step of 2^-9 in float32


def validate_fp8_block_shape(layer: LinearWeights, block_size: tuple[int, int]) -> None:
    """Raises ValueError, in upstream's words, where ranks cut a layer's weight through a block of rows or columns.

    Layers that stack several tensors (qkv, gate and up) are not looked at, as there
    (upstream/vllm/model_executor/layers/linear.py:506 — `ColumnParallelLinear._maybe_allow_fp8_block_shape_mismatch`):
    each row has its own copy of its block's scales here, so that a cut between two rows is no harm.

    Upstream: upstream/vllm/model_executor/layers/quantization/utils/fp8_utils.py:1128 — `validate_fp8_block_shape`.
    Experts are refused by other words there, and at one rank too where a block of rows holds gate and up:
    upstream/vllm/model_executor/layers/quantization/fp8.py:645 — "The input_size of down's weight = ".
    """
    (block_n, block_k), where = block_size, f"{layer.prefix}, tensor_parallel_size={layer.context.tp_size}"
    if layer.in_features != layer.input_size and layer.in_features % block_k:
        raise ValueError(
            f"Weight input_size_per_partition = {layer.in_features} is not divisible by weight quantization "
            f"block_k = {block_k}. ({where})"
        )
    if layer.out_features != layer.output_size and len(layer.partitions) == 1 and layer.out_features % block_n:
        raise ValueError(
            f"Weight output_partition_size = {layer.out_features} is not divisible by weight quantization "
            f"block_n = {block_n}. ({where})"
        )


def _decoding_table() -> Array:
    """Value of every code, float32 [256]."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    value = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    value = np.where(code & 127 == _NAN, np.nan, value)
    return np.where(code >= 128, -value, value).astype(np.float32)


E4M3_VALUES: Array = _decoding_table()


def decode_e4m3(codes: Array, out: Array | None = None) -> Array:
    """Codes (uint8, any shape) -> float32 values; `out` may be another float type."""
    if out is None or out.dtype == np.float32:
        return E4M3_VALUES.take(codes, out=out, mode="clip")  # "clip": without a mode numpy buffers `out`
    np.copyto(out, E4M3_VALUES.take(codes))
    return out


def encode_e4m3(x: Array) -> Array:
    """Floats (any shape) -> codes, uint8: rounded to nearest, ties to even; beyond +-448, infinities too, saturated.

    Same bits as `torch.clamp(x, -448, 448).to(torch.float8_e4m3fn)`; NaN keeps its sign.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    sign = (bits >> 24).astype(np.uint8) & 0x80
    magnitude = bits & 0x7FFF_FFFF
    is_nan = magnitude > 0x7F80_0000
    whole = np.minimum(magnitude, np.float32(E4M3_MAX).view(np.uint32))  # as integers they are in the same order
    size = whole.view(np.float32)
    # Half of what is cut off, less one, plus the last bit that stays: the carry rounds to nearest, ties to even.
    normal = ((whole + 0x7_FFFF + ((whole >> 20) & 1)) >> 20) - np.uint32(_REBIAS)
    small = (size + _ROUND_DENORMAL).view(np.uint32) - _ROUND_DENORMAL.view(np.uint32)
    code = np.where(size < E4M3_SMALLEST_NORMAL, small, normal)
    return np.where(is_nan, np.uint8(_NAN), code.astype(np.uint8)) | sign


def fp8_scale(largest: Array | float) -> Any:
    """The float32 scale that maps this magnitude to 448, never so small that its inverse overflows.

    Upstream: upstream/vllm/model_executor/layers/quantization/input_quant_fp8.py:188 — `QuantFP8.forward_native`.
    """
    return np.maximum(np.float32(largest) / np.float32(E4M3_MAX), np.float32(1 / (E4M3_MAX * 512)))


def quantize_fp8(W: Array, scale: Any = None) -> tuple[Array, Any]:
    """Codes of the shape of W, and the scale: `W ~ decode_e4m3(codes) * scale`.

    By default one scale for all of W. Upstream multiplies by the inverse as well, which rounds otherwise than dividing.
    """
    if scale is None:
        scale = fp8_scale(np.abs(W).max(initial=0.0))
    return encode_e4m3(W * (1 / scale)), scale
