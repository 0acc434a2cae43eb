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
        q: int8 [out, in], from -7 to 7: the nearest multiple of the scale, half-way between two the even one; beyond
            the last the last.
        scales: [out, in / group_size], of W's dtype: the smallest at which the loudest of the group has a code; 1 where
            a group is all zero.

    Raises:
        ValueError: "group_size must divide ..." where the groups do not fit the row.
    """
    raise NotImplementedError("the nearest codes from -7 to 7, and a scale for each group")


def dequantize_grouped(q: Array, scales: Array, group_size: int) -> Array:
    """The floats that the codes stand for: q [out, in] -> floats [out, in], of the type of the scales."""
    raise NotImplementedError("the floats that the codes stand for")


def pack_int4(q: Array) -> Array:
    """Two codes in a byte: the even one in the low four bits, the odd one in the high four, each as code + 8.

    Args:
        q: int8 [out, in], from -8 to 7.

    Returns:
        uint8 [out, in / 2].

    Raises:
        ValueError: "... must be even ..." where a row has an odd number of codes.
    """
    raise NotImplementedError("the codes, two in each byte")


def unpack_int4(packed: Array) -> Array:
    """uint8 [out, in / 2] -> int8 codes [out, in]: the inverse of `pack_int4`."""
    raise NotImplementedError("the codes that pack_int4 was given")


def pack_int32(nibbles: Array, order: Sequence[int] = SEQUENTIAL) -> Array:
    """Eight nibbles in an int32, as the checkpoints have them.

    Args:
        nibbles: unsigned codes 0..15 [rows, n]; n divides by 8.
        order: bits 4k to 4k + 3 of a word hold element `order[k]` of its eight.

    Returns:
        int32 [rows, n / 8].
    """
    raise NotImplementedError("words of eight nibbles each, in the order that is asked for")


def memory_bytes_grouped(shape: tuple[int, int], group_size: int, scale_bytes: int = 2) -> int:
    """Bytes of a packed weight [out, in] and of its scales."""
    raise NotImplementedError("the bytes of a packed weight and its scales")


def grouped_linear(x: Array, packed: Array, scales: Array, group_size: int) -> Array:
    """`x @ W.T` from the packed weight. W is never there as a whole, neither as floats nor as unpacked codes.

    Args:
        x: floats [tokens, in].
        packed: uint8 [out, in / 2] from `pack_int4`. group_size is even.
        scales: [out, in / group_size].

    Returns:
        [tokens, out], of x's dtype. Memory: result and x aside, never more than one and a half times what the packed
            weight takes itself (or, for very small ones, one row or one group of it).
    """
    raise NotImplementedError("the layer's output, from the packed weight as it lies in memory")
