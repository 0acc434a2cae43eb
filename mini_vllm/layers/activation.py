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


def silu(x: Array) -> Array:
    """`x * sigmoid(x)`. exp overflows to inf for a very negative x, and x / inf is 0, which is right."""
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-x))
