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

    Quantiles of the standard normal distribution: for the positive side at the 9 probabilities that lie evenly between
    OFFSET and 0.5 (0.5 itself, the zero, left out: 8 levels), for the negative side mirrored at 8 (7 levels), and an
    exact 0 between them; all divided by the largest.
    """
    raise NotImplementedError("take the normal quantiles of both sides and an exact 0, sort, divide by the largest")


def quantize_nf4(W: Array, block_size: int = BLOCK) -> tuple[Array, Array]:
    """The nearest level of each weight, after its block was divided by its largest magnitude.

    Args:
        W: floats [out, in].
        block_size: at least 1; must divide `in`.

    Returns:
        codes: uint8 [out, in], places in `nf4_levels()`, 0 to 15.
        absmax: float32 [out, in / block_size].

    Raises:
        ValueError: "block_size must divide ...".
    """
    raise NotImplementedError("divide each block by its largest magnitude and find the nearest level of each weight")


def dequantize_nf4(codes: Array, absmax: Array) -> Array:
    """`level * absmax` of its block, float32 [out, in]; the block size follows from the two shapes."""
    raise NotImplementedError("look the levels up and multiply each block by its absmax")


def pack_nf4(codes: Array) -> Array:
    """Two codes a byte, the first in the UPPER half, as bitsandbytes has them: [out, in] -> uint8 [out, in / 2]."""
    raise NotImplementedError("shift the even columns four bits up and combine them with the odd ones")


def double_quantize(absmax: Array) -> tuple[Array, Array, float]:
    """The scales themselves in 8 bits: their mean is taken off, then int8 in blocks of SECOND_BLOCK.

    Args:
        absmax: float32 [out, blocks]; taken row by row as one long list, its last block may be shorter.

    Returns:
        codes: int8, the shape of absmax: round((absmax - mean) / scale), half to even.
        scales: float32, one for each 256 of them: largest magnitude / 127; 1 where it is 0.
        mean: of all of absmax.

    bitsandbytes rounds to 256 uneven levels instead (its "dynamic" code); the bytes are the same.
    """
    raise NotImplementedError("subtract the mean, then quantize runs of 256 scales to int8")


def restore_scales(codes: Array, scales: Array, mean: float) -> Array:
    """absmax again, float32 of the shape of codes."""
    raise NotImplementedError("multiply each code with the scale of its run of 256 and add the mean")


def bits_per_weight(block_size: int = BLOCK, double: bool = False) -> float:
    """Bits of one weight: its code and its part of the scales (float32; doubly quantized 8 bits, and theirs)."""
    raise NotImplementedError("add to 4 bits the bits of a scale divided by the weights that share it")
