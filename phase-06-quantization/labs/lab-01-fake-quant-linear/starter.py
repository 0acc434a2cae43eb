"""Lab 06-01: int8 with a scale for each output row, and what it costs and saves.

Weights are [out, in], as checkpoints store them. Everything is symmetric: `W ~ scale * q`, and q runs from -127 to 127.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INT8_MAX = 127


def quantize_per_tensor(W: Array) -> tuple[Array, float]:
    """int8 codes of W with a single scale.

    Args:
        W: floats, any shape.

    Returns:
        q: int8, the shape of W: round(W / scale), half to even, clipped to -127..127 after rounding.
        scale: max|W| / 127; 1.0 where W is all zero.
    """
    raise NotImplementedError("divide W by max|W| / 127 (1.0 where W is zero), round, then clip to -127..127 as int8")


def quantize_per_channel(W: Array) -> tuple[Array, Array]:
    """int8 codes of W with a scale for each output row.

    Args:
        W: floats [out, in].

    Returns:
        q: int8 [out, in].
        scales: [out], of W's dtype: max|W[o]| / 127; 1 where a row is all zero.

    Upstream: the channel strategy of
    upstream/vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_int8.py:26 —
    `CompressedTensorsW8A8Int8`.
    """
    raise NotImplementedError("find max|W[o]| / 127 of each row (1 where a row is zero), divide, round, then clip")


def dequantize(q: Array, scale: Array | float) -> Array:
    """The floats that the codes stand for.

    Args:
        q: int8 [out, in].
        scale: one number, or one for each row of q [out].

    Returns:
        scale * q, floats [out, in].
    """
    raise NotImplementedError("multiply the codes by their scale; a vector of scales belongs to the rows")


def quant_linear(x: Array, q: Array, scales: Array) -> Array:
    """`x @ W.T` for a W that is stored as codes, without making the floats of W.

    Args:
        x: floats [tokens, in].
        q: int8 [out, in].
        scales: [out].

    Returns:
        [tokens, out], float32 where x and scales are. A row's scale leaves its dot product: multiply the result, not W.
    """
    raise NotImplementedError("multiply x with the codes, and the result with the scales of the rows")


def memory_bytes(W: Array) -> int:
    """Bytes of W as it is."""
    raise NotImplementedError("multiply the number of elements by the bytes of one")


def memory_bytes_quant(q: Array, scale: Array | float) -> int:
    """Bytes of the codes and of all scales; a single float counts as 4 bytes."""
    raise NotImplementedError("add the bytes of the codes and of the scales")
