"""Activations. Upstream twin: `vllm/model_executor/layers/activation.py`."""

from __future__ import annotations

import numpy as np

from mini_vllm.layers.module import Module
from mini_vllm.utils.arrays import Array


class SiluAndMul(Module):
    """SwiGLU's middle: `silu(gate) * up`, for x = gate beside up, [..., 2 * n] -> [..., n].

    Upstream: upstream/vllm/model_executor/layers/activation.py:118 — `SiluAndMul`.
    """

    def forward(self, x: Array) -> Array:
        """[..., 2 * n] -> [..., n]."""
        gate, up = np.split(x, 2, axis=-1)
        return silu(gate) * up


class GeluAndMul(Module):
    """GeGLU's middle: `gelu(gate) * up`, with the approximation by a tanh.

    Upstream: upstream/vllm/model_executor/layers/activation.py:322 — `GeluAndMul`.
    """

    def forward(self, x: Array) -> Array:
        """[..., 2 * n] -> [..., n]."""
        gate, up = np.split(x, 2, axis=-1)
        return gelu_tanh(gate) * up


def gelu_tanh(x: Array) -> Array:
    """`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`."""
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def silu(x: Array) -> Array:
    """`x * sigmoid(x)`. exp overflows to inf for a very negative x, and x / inf is 0, which is right."""
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-x))
