"""Lab 06-05: NF4: sixteen levels placed where the weights are, and scales that are quantized themselves.

Weights are [out, in]; a block is `block_size` neighbours of a row and shares one float32 scale, its largest magnitude.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
OFFSET = 0.9677083
"""Probability at the outermost quantile: half-way between 1 - 1/30 and 1 - 1/32. bitsandbytes has this constant."""
BLOCK = 64
SECOND_BLOCK = 256


def nf4_levels() -> Array:
    """The codebook: 16 levels from -1 to 1, ascending, float32.

    An exact 0; 8 levels above it and 7 below, the outermost 1 and -1. Each side: quantiles of the standard normal
    distribution at probabilities that lie evenly spaced from OFFSET towards 0.5, which would be the 0; divided by the
    outermost.
    """
    raise NotImplementedError("sixteen levels from -1 to 1, dense where normal weights are")


def quantize_nf4(W: Array, block_size: int = BLOCK) -> tuple[Array, Array]:
    """For each weight the level that, times its block's largest magnitude, is nearest to it.

    Args:
        W: floats [out, in].
        block_size: at least 1; must divide `in`.

    Returns:
        codes: uint8 [out, in], places in `nf4_levels()`, 0 to 15.
        absmax: float32 [out, in / block_size].

    Raises:
        ValueError: "block_size must divide ...".
    """
    raise NotImplementedError("the place of each weight's nearest level, and each block's largest magnitude")


def dequantize_nf4(codes: Array, absmax: Array) -> Array:
    """The weights that the codes stand for, float32 [out, in]; the block size follows from the two shapes."""
    raise NotImplementedError("the weights that the codes stand for")


def pack_nf4(codes: Array) -> Array:
    """Two codes a byte, the first in the UPPER half, as bitsandbytes has them: [out, in] -> uint8 [out, in / 2]."""
    raise NotImplementedError("the codes, two in each byte, as bitsandbytes has them")


def double_quantize(absmax: Array) -> tuple[Array, Array, float]:
    """The scales themselves in 8 bits: their mean is taken off, then int8 in blocks of SECOND_BLOCK.

    Args:
        absmax: float32 [out, blocks]; taken row by row as one long list, its last block may be shorter.

    Returns:
        codes: int8, the shape of absmax, -127 to 127: lab 06-01's codes of what is left above and below the mean.
        scales: float32, one for each SECOND_BLOCK of the list; 1 where nothing is left.
        mean: of all of absmax, a float.

    bitsandbytes rounds to 256 uneven levels instead (its "dynamic" code); the bytes are the same.
    """
    raise NotImplementedError("the scales in 8 bits, with what is needed to restore them")


def restore_scales(codes: Array, scales: Array, mean: float) -> Array:
    """absmax again, float32 of the shape of codes."""
    raise NotImplementedError("the scales, as well as the 8 bits allow")


def bits_per_weight(block_size: int = BLOCK, double: bool = False) -> float:
    """Bits of one weight: its code and its part of the scales (float32; doubly quantized 8 bits, and theirs)."""
    raise NotImplementedError("the bits that a weight costs, scales included")
