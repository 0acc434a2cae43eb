"""Lab 06-03: int4 in groups, and how sixteen values of four bits lie in bytes and in int32 words.

Weights are [out, in]. Codes run from -7 to 7; a stored nibble is code + 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INT4_MAX, OFFSET = 7, 8
SEQUENTIAL = (0, 1, 2, 3, 4, 5, 6, 7)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:794 — `awq_pack`."""


def quantize_grouped(W: Array, group_size: int) -> tuple[Array, Array]:
    """int4 codes with a scale for each group of `group_size` neighbours in a row.

    Args:
        W: floats [out, in].
        group_size: at least 1; must divide `in`.

    Returns:
        q: int8 [out, in], from -7 to 7: round(W / scale), half to even, clipped.
        scales: [out, in / group_size], of W's dtype: max|group| / 7; 1 where a group is all zero.

    Raises:
        ValueError: "group_size must divide ..." where the groups do not fit the row.
    """
    raise NotImplementedError("check the groups; divide by max|group| / 7 (1 where all is zero), round, clip to -7..7")


def dequantize_grouped(q: Array, scales: Array, group_size: int) -> Array:
    """The floats that the codes stand for: each code times the scale of its group. q [out, in] -> floats [out, in]."""
    raise NotImplementedError("multiply each code with the scale of its group")


def pack_int4(q: Array) -> Array:
    """Two codes in a byte: the even one in the low four bits, the odd one in the high four, each as code + 8.

    Args:
        q: int8 [out, in], from -8 to 7.

    Returns:
        uint8 [out, in / 2].

    Raises:
        ValueError: "... must be even ..." where a row has an odd number of codes.
    """
    raise NotImplementedError("check that the number is even, add 8, put the odd columns four bits above the even ones")


def unpack_int4(packed: Array) -> Array:
    """uint8 [out, in / 2] -> int8 codes [out, in]: the inverse of `pack_int4`."""
    raise NotImplementedError("take the low and the high four bits apart again and subtract 8")


def pack_int32(nibbles: Array, order: Sequence[int] = SEQUENTIAL) -> Array:
    """Eight nibbles in an int32, as the checkpoints have them.

    Args:
        nibbles: unsigned codes 0..15 [rows, n]; n divides by 8.
        order: bits 4k to 4k + 3 of a word hold element `order[k]` of its eight.

    Returns:
        int32 [rows, n / 8].
    """
    raise NotImplementedError("shift element order[k] of each eight by 4k bits and combine the eight into one int32")


def memory_bytes_grouped(shape: tuple[int, int], group_size: int, scale_bytes: int = 2) -> int:
    """Bytes of a packed weight [out, in] and of its scales."""
    raise NotImplementedError("add half a byte for each weight and scale_bytes for each group")


def grouped_linear(x: Array, packed: Array, scales: Array, group_size: int) -> Array:
    """`x @ W.T` from the packed weight, one group of columns at a time: W is never there as a whole.

    Args:
        x: floats [tokens, in].
        packed: uint8 [out, in / 2] from `pack_int4`. group_size is even.
        scales: [out, in / group_size].

    Returns:
        floats [tokens, out]: the sum over groups of (x_group @ codes_group.T) * scales_group.
    """
    raise NotImplementedError("add up the groups: unpack one group, multiply with its part of x, then with its scales")
