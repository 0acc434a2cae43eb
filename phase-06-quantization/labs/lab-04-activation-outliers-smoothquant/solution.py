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
    largest = float(np.abs(T).max())
    scale = largest / INT8_MAX if largest > 0 else 1.0
    return np.rint(T / scale).astype(np.int8), scale


def fake_quant(T: Array) -> Array:
    """T after a round trip through int8 with one scale, as floats: the rounding error and nothing else."""
    q, scale = quantize_per_tensor(T)
    return q * scale


def fake_quant_rows(T: Array) -> Array:
    """The same with a scale for each row: tokens of X, output channels of W."""
    largest = np.abs(T).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / INT8_MAX, 1.0)
    return np.rint(T / scales) * scales


def w8a8_matmul(X: Array, W: Array, *, per_token_x: bool = False, per_channel_w: bool = False) -> Array:
    """`X @ W.T` with both sides rounded to int8.

    Args:
        X: floats [tokens, in]. W: floats [out, in].
        per_token_x: a scale for each row of X instead of one for all of it.
        per_channel_w: a scale for each row of W instead of one for all of it.

    Returns:
        floats [tokens, out].
    """
    x = fake_quant_rows(X) if per_token_x else fake_quant(X)
    w = fake_quant_rows(W) if per_channel_w else fake_quant(W)
    return x @ w.T


def int8_matmul(X: Array, W: Array) -> Array:
    """`X @ W.T` as the hardware does it: int8 codes, products summed in int32, and one multiplication at the end.

    Args:
        X: floats [tokens, in]. W: floats [out, in]. One scale each.

    Returns:
        floats [tokens, out], to the last bit the exact integers times the product of both scales; that is also
            `w8a8_matmul(X, W)`, but for its last bits.
    """
    x, x_scale = quantize_per_tensor(X)
    w, w_scale = quantize_per_tensor(W)
    return (x.astype(np.int32) @ w.T.astype(np.int32)) * (x_scale * w_scale)


def smoothing_factors(X: Array, W: Array, alpha: float = 0.5) -> Array:
    """How much of each input channel's loudness moves from X to W. Loudness: the largest magnitude in a channel.

    Args:
        alpha: 1 leaves every channel of X / s with loudness 1, 0 every channel of W * s; 0.5 makes the two of a channel
            equally loud. In between, each s moves evenly on a logarithmic scale: s at 0.5 is the geometric mean of s at
            0.2 and s at 0.8.

    Returns:
        s [in], more than 0; 1 for a channel in which X or W is all zero, with no warning on the way.
    """
    loud_x, loud_w = np.abs(X).max(axis=0), np.abs(W).max(axis=0)
    usable = (loud_x > 0) & (loud_w > 0)
    ones = np.ones_like(loud_x)
    loud_x, loud_w = np.where(usable, loud_x, ones), np.where(usable, loud_w, ones)
    return loud_x**alpha / loud_w ** (1 - alpha)


def smooth(X: Array, W: Array, alpha: float = 0.5) -> tuple[Array, Array]:
    """X and W, rescaled by channel: the same product, with the loudness shared as `smoothing_factors` says."""
    s = smoothing_factors(X, W, alpha)
    return X / s, W * s
