"""Lab 06-04: a few loud activation channels, what they do to W8A8, and how to move them into the weights.

X holds activations [tokens, in], W a weight [out, in]; the layer computes X @ W.T.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INT8_MAX = 127


def quantize_per_tensor(T: Array) -> tuple[Array, float]:
    """int8 codes of T, -127 to 127, and one scale, a float: those of lab 06-01. 1.0 where T is all zero."""
    raise NotImplementedError("the int8 codes of all of T, and their one scale")


def fake_quant(T: Array) -> Array:
    """T after a round trip through int8 with one scale, as floats: the rounding error and nothing else."""
    raise NotImplementedError("what is left of T after int8 with one scale")


def fake_quant_rows(T: Array) -> Array:
    """The same with a scale for each row: tokens of X, output channels of W."""
    raise NotImplementedError("what is left of T after int8 with a scale for each row")


def w8a8_matmul(X: Array, W: Array, *, per_token_x: bool = False, per_channel_w: bool = False) -> Array:
    """`X @ W.T` with both sides rounded to int8.

    Args:
        X: floats [tokens, in]. W: floats [out, in].
        per_token_x: a scale for each row of X instead of one for all of it.
        per_channel_w: a scale for each row of W instead of one for all of it.

    Returns:
        floats [tokens, out].
    """
    raise NotImplementedError("the product of X and W after both were rounded, each with the scales asked for")


def int8_matmul(X: Array, W: Array) -> Array:
    """`X @ W.T` as the hardware does it: int8 codes, products summed in int32, and one multiplication at the end.

    Args:
        X: floats [tokens, in]. W: floats [out, in]. One scale each.

    Returns:
        floats [tokens, out], to the last bit the exact integers times the product of both scales; that is also
            `w8a8_matmul(X, W)`, but for its last bits.
    """
    raise NotImplementedError("the same product, from integers")


def smoothing_factors(X: Array, W: Array, alpha: float = 0.5) -> Array:
    """How much of each input channel's loudness moves from X to W. Loudness: the largest magnitude in a channel.

    Args:
        alpha: 1 leaves every channel of X / s with loudness 1, 0 every channel of W * s; 0.5 makes the two of a channel
            equally loud. In between, each s moves evenly on a logarithmic scale: s at 0.5 is the geometric mean of s at
            0.2 and s at 0.8.

    Returns:
        s [in], more than 0; 1 for a channel in which X or W is all zero, with no warning on the way.
    """
    raise NotImplementedError("how much loudness each channel hands from X to W")


def smooth(X: Array, W: Array, alpha: float = 0.5) -> tuple[Array, Array]:
    """X and W, rescaled by channel: the same product, with the loudness shared as `smoothing_factors` says."""
    raise NotImplementedError("X and W with their loudness shared, and their product as before")
