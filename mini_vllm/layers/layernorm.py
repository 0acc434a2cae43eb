"""Norms, feature-major: [features, tokens]. Upstream twin: `vllm/model_executor/layers/layernorm.py`."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array


def rms_norm(x: Array, weight: Array, eps: float, out: Array) -> None:
    """`out = x / sqrt(mean(x^2) + eps) * weight` for each token.

    x, out: [features, tokens]; weight: [features, 1].
    Upstream: upstream/vllm/model_executor/layers/layernorm.py:38 — `RMSNorm`.
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
