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
    raise NotImplementedError("the nearest int8 codes of all of W, and the one scale that they share")


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
    raise NotImplementedError("the nearest int8 codes, and for each row a scale of its own")


def dequantize(q: Array, scale: Array | float) -> Array:
    """The floats that the codes stand for.

    Args:
        q: int8 [out, in].
        scale: one number, or one for each row of q [out].

    Returns:
        floats [out, in], of the type of the scales.
    """
    raise NotImplementedError("the floats that the codes stand for, with one scale or one for each row")


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
    raise NotImplementedError("the layer's output, without the floats of W ever being there as a whole")


def memory_bytes(W: Array) -> int:
    """Bytes of W as it is."""
    raise NotImplementedError("the bytes that W takes as it is")


def memory_bytes_quant(q: Array, scale: Array | float) -> int:
    """Bytes of the codes and of all scales; a single float counts as 4 bytes."""
    raise NotImplementedError("the bytes of the codes and of everything that is needed to read them")
