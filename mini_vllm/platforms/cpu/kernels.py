"""The small operations of a decoder as numpy does them fastest: features first, [features, tokens], and in place.

A sum over features is then a sum of rows, which numpy vectorizes; and `weight @ x` gives what the next operation takes.
The layers (`mini_vllm/layers/`) say the same token-major. Upstream's nearest kin: `vllm/_custom_ops.py`, whose kernels
take the place of a layer's `forward_native`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array


def rms_norm(x: Array, weight: Array, eps: float, out: Array) -> None:
    """`out = x / sqrt(mean(x^2) + eps) * weight` for each token.

    x, out: [features, tokens]; weight: [features, 1].
    """
    if x.shape[1] == 1:  # one token: a dot product and two calls instead of six
        mean = float(np.dot(x[:, 0], x[:, 0])) / x.shape[0]
        np.multiply(x, weight, out=out)
        out *= 1.0 / math.sqrt(mean + eps)
        return
    np.multiply(x, x, out=out)
    scale = np.dot(_averaging(x.shape[0], x.dtype), out)  # the mean over features, as a product
    scale += eps
    np.sqrt(scale, out=scale)
    np.divide(x, scale, out=out)
    out *= weight


@lru_cache(maxsize=64)
def _averaging(size: int, dtype: np.dtype[Any]) -> Array:
    return np.full(size, 1.0 / size, dtype)


def rms_norm_heads(x: Array, weight: Array, eps: float) -> None:
    """RMS norm of every head of every token, in place. x: [heads, head_dim, tokens]; weight: [head_dim, 1]."""
    scale = np.add.reduce(x * x, axis=1, keepdims=True)
    scale *= 1.0 / x.shape[1]
    scale += eps
    np.sqrt(scale, out=scale)
    x /= scale
    x *= weight


def layer_norm(x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
    """Layer norm for each token. x, out: [features, tokens]; weight, bias: [features, 1]."""
    np.subtract(x, np.add.reduce(x, axis=0) * (1.0 / x.shape[0]), out=out)
    variance = np.add.reduce(out * out, axis=0)
    variance *= 1.0 / x.shape[0]
    variance += eps
    np.sqrt(variance, out=variance)
    out /= variance
    out *= weight
    out += bias


def silu_and_mul(gate: Array, up: Array, tmp: Array) -> None:
    """SwiGLU's middle, in place: `gate = gate / (1 + exp(-gate)) * up`. All [features, tokens].

    exp overflows to inf for a very negative gate, and gate / inf is 0, which is right; callers silence the warning.
    """
    np.negative(gate, out=tmp)
    np.exp(tmp, out=tmp)
    tmp += 1.0
    np.divide(gate, tmp, out=gate)
    gate *= up


def gelu_and_mul(gate: Array, up: Array, tmp: Array) -> None:
    """GeGLU's middle, in place: `gate = gelu(gate) * up`, with the approximation by a tanh. All [features, tokens]."""
    np.multiply(gate, gate, out=tmp)
    tmp *= 0.044715
    tmp += 1.0
    tmp *= gate
    tmp *= math.sqrt(2.0 / math.pi)
    np.tanh(tmp, out=tmp)
    tmp += 1.0
    tmp *= 0.5
    gate *= tmp
    gate *= up


class RotaryPairs:
    """Heads to be rotated, [heads, 2, head_dim / 2, tokens], scratch of that shape, and the halves of both."""

    def __init__(self, pairs: Array, tmp: Array) -> None:
        self.pairs, self.tmp = pairs, tmp
        self.first, self.second = pairs[:, 0], pairs[:, 1]
        self.tmp_first, self.tmp_second = tmp[:, 0], tmp[:, 1]


def rotate(x: RotaryPairs, cos: Array, sin: Array) -> None:
    """Rotate in place. cos, sin: [head_dim / 2, tokens]."""
    np.multiply(x.pairs, sin, out=x.tmp)
    np.multiply(x.pairs, cos, out=x.pairs)
    np.subtract(x.first, x.tmp_second, out=x.first)
    np.add(x.second, x.tmp_first, out=x.second)
