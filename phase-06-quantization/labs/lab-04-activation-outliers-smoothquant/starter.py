"""Lab 06-04: a few loud activation channels, what they do to W8A8, and how to move them into the weights.

X holds activations [tokens, in], W a weight [out, in]; the layer computes X @ W.T.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INT8_MAX = 127


def quantize_per_tensor(T: Array) -> tuple[Array, float]:
    """int8 codes of T and the one scale max|T| / 127 (1.0 where T is all zero); rounded half to even."""
    raise NotImplementedError("divide by max|T| / 127 (1.0 where T is zero) and round to int8")


def fake_quant(T: Array) -> Array:
    """T after a round trip through int8 with one scale, as floats: the rounding error and nothing else."""
    raise NotImplementedError("quantize T with one scale and multiply back")


def fake_quant_rows(T: Array) -> Array:
    """The same with a scale for each row: tokens of X, output channels of W."""
    raise NotImplementedError("do the same with max / 127 of each row (1 where a row is zero)")


def w8a8_matmul(X: Array, W: Array, *, per_token_x: bool = False, per_channel_w: bool = False) -> Array:
    """`X @ W.T` with both sides rounded to int8.

    Args:
        X: floats [tokens, in]. W: floats [out, in].
        per_token_x: a scale for each row of X instead of one for all of it.
        per_channel_w: a scale for each row of W instead of one for all of it.

    Returns:
        floats [tokens, out].
    """
    raise NotImplementedError("round X and W, each with one scale or with one a row, and multiply")


def int8_matmul(X: Array, W: Array) -> Array:
    """`X @ W.T` as the hardware does it: int8 codes, products summed in int32, and one multiplication at the end.

    Args:
        X: floats [tokens, in]. W: floats [out, in]. One scale each.

    Returns:
        floats [tokens, out]; equal to `w8a8_matmul(X, W)` but for the last bits.
    """
    raise NotImplementedError("multiply the codes as int32 and the result by the product of the two scales")


def smoothing_factors(X: Array, W: Array, alpha: float = 0.5) -> Array:
    """How much of each input channel's loudness moves from X to W.

    Args:
        alpha: 0 moves by the weights alone, 1 moves all; 0.5 leaves both sides equally loud.

    Returns:
        s [in]: max|X[:, j]| ** alpha / max|W[:, j]| ** (1 - alpha); 1 where one of the two is 0.
    """
    raise NotImplementedError("divide max|X| of each channel to the alpha by max|W| to the 1 - alpha")


def smooth(X: Array, W: Array, alpha: float = 0.5) -> tuple[Array, Array]:
    """(X / s, W * s): the same product, with the loudness shared between the two."""
    raise NotImplementedError("divide the channels of X by the factors and multiply those of W with them")
