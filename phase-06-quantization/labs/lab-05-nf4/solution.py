"""Lab 06-05: NF4: sixteen levels placed where the weights are, and scales that are quantized themselves.

Weights are [out, in]; a block is `block_size` neighbours of a row and shares one float32 scale, its largest magnitude.
"""

from __future__ import annotations

from statistics import NormalDist
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
    quantile = NormalDist().inv_cdf
    positive = [quantile(p) for p in np.linspace(OFFSET, 0.5, 9)[:-1]]
    negative = [-quantile(p) for p in np.linspace(OFFSET, 0.5, 8)[:-1]]
    levels = np.sort(np.array([*negative, 0.0, *positive]))
    return (levels / levels.max()).astype(np.float32)


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
    if block_size < 1 or W.shape[1] % block_size:
        raise ValueError(f"block_size must divide the {W.shape[1]} inputs of a row evenly, got {block_size}")
    blocks = W.astype(np.float32).reshape(len(W), -1, block_size)
    absmax = np.abs(blocks).max(axis=2)
    normed = blocks / np.where(absmax > 0, absmax, 1)[:, :, None]
    codes = np.abs(normed[..., None] - nf4_levels()).argmin(axis=-1)
    return codes.astype(np.uint8).reshape(W.shape), absmax


def dequantize_nf4(codes: Array, absmax: Array) -> Array:
    """The weights that the codes stand for, float32 [out, in]; the block size follows from the two shapes."""
    blocks = nf4_levels()[codes].reshape(*absmax.shape, -1)
    return (blocks * absmax[:, :, None]).reshape(codes.shape).astype(np.float32)


def pack_nf4(codes: Array) -> Array:
    """Two codes a byte, the first in the UPPER half, as bitsandbytes has them: [out, in] -> uint8 [out, in / 2]."""
    return (codes[:, 0::2] << 4) | codes[:, 1::2]


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
    mean = float(absmax.mean())
    flat = (absmax - mean).reshape(-1)
    padded = np.pad(flat, (0, -flat.size % SECOND_BLOCK)).reshape(-1, SECOND_BLOCK)
    largest = np.abs(padded).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    codes = np.rint(padded / scales[:, None]).astype(np.int8)
    return codes.reshape(-1)[: flat.size].reshape(absmax.shape), scales, mean


def restore_scales(codes: Array, scales: Array, mean: float) -> Array:
    """absmax again, float32 of the shape of codes."""
    which = np.arange(codes.size) // SECOND_BLOCK
    flat = codes.reshape(-1) * scales[which] + mean
    return flat.reshape(codes.shape).astype(np.float32)


def bits_per_weight(block_size: int = BLOCK, double: bool = False) -> float:
    """Bits of one weight: its code and its part of the scales (float32; doubly quantized 8 bits, and theirs)."""
    scale_bits = 8 + 32 / SECOND_BLOCK if double else 32
    return 4 + scale_bits / block_size
