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
    largest = float(np.abs(W).max())
    scale = largest / INT8_MAX if largest > 0 else 1.0
    return np.clip(np.rint(W / scale), -INT8_MAX, INT8_MAX).astype(np.int8), scale


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
    largest = np.abs(W).max(axis=1)
    scales = np.where(largest > 0, largest / INT8_MAX, 1).astype(W.dtype)
    return np.clip(np.rint(W / scales[:, None]), -INT8_MAX, INT8_MAX).astype(np.int8), scales


def dequantize(q: Array, scale: Array | float) -> Array:
    """The floats that the codes stand for.

    Args:
        q: int8 [out, in].
        scale: one number, or one for each row of q [out].

    Returns:
        scale * q, floats [out, in].
    """
    scale = np.asarray(scale)
    return q * (scale[:, None] if scale.ndim == 1 else scale)


def quant_linear(x: Array, q: Array, scales: Array) -> Array:
    """`x @ W.T` for a W that is stored as codes, without making the floats of W.

    Args:
        x: floats [tokens, in].
        q: int8 [out, in].
        scales: [out].

    Returns:
        [tokens, out], float32 where x and scales are. A row's scale leaves its dot product: multiply the result, not W.
    """
    return (x @ q.T.astype(x.dtype)) * scales


def memory_bytes(W: Array) -> int:
    """Bytes of W as it is."""
    return W.size * W.itemsize


def memory_bytes_quant(q: Array, scale: Array | float) -> int:
    """Bytes of the codes and of all scales; a single float counts as 4 bytes."""
    return memory_bytes(q) + (memory_bytes(scale) if isinstance(scale, np.ndarray) else 4)
