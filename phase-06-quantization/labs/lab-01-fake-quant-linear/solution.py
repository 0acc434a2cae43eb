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
        q: int8, the shape of W, -127 to 127: of these points times the scale the nearest to each weight; half-way
            between two, the even code. A weight beyond the last point has the last code.
        scale: a float, the smallest at which the loudest weight has a point; 1.0 where W is all zero.
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
        scales: [out], of W's dtype, for each row what `scale` is for a whole tensor; 1 where a row is all zero.

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
        floats [out, in], of the type of the scales.
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
        [tokens, out], float32 where x and scales are. Memory: at no time are there floats for more than an eighth of W
        (or one row of it), result and x aside.
    """
    out = np.empty((len(x), len(q)), np.result_type(x, scales))
    rows = max(1, len(q) // 8)
    for start in range(0, len(q), rows):
        part = slice(start, start + rows)
        out[:, part] = (x @ q[part].T.astype(x.dtype)) * scales[part]
    return out


def memory_bytes(W: Array) -> int:
    """Bytes of W as it is."""
    return W.size * W.itemsize


def memory_bytes_quant(q: Array, scale: Array | float) -> int:
    """Bytes of the codes and of all scales; a single float counts as 4 bytes."""
    return memory_bytes(q) + (memory_bytes(scale) if isinstance(scale, np.ndarray) else 4)
