"""Norms over the last axis. Upstream twin: `vllm/model_executor/layers/layernorm.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.module import Module
from mini_vllm.utils.arrays import Array


class RMSNorm(Module):
    """`x / sqrt(mean(x^2) + eps) * weight`, for x [..., hidden_size].

    Upstream: upstream/vllm/model_executor/layers/layernorm.py:38 — `RMSNorm`.
    """

    def __init__(self, hidden_size: int, eps: float, context: ModelContext, prefix: str) -> None:
        self.weight, self.eps, self.prefix = context.new(hidden_size), eps, prefix
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """One tensor."""
        yield f"{self.prefix}.weight", self.weight

    def forward(self, x: Array) -> Array:
        """[..., hidden_size] -> the same shape."""
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight


class GemmaRMSNorm(RMSNorm):
    """The weight is stored less one: `x / sqrt(mean(x^2) + eps) * (1 + weight)`.

    Upstream: upstream/vllm/model_executor/layers/layernorm.py:133 — `GemmaRMSNorm`.
    """

    def forward(self, x: Array) -> Array:
        """[..., hidden_size] -> the same shape."""
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * (1 + self.weight)


class LayerNorm(Module):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`, for x [..., hidden_size].

    Upstream: upstream/vllm/model_executor/layers/layernorm.py:319 — `LayerNorm`; OPT uses torch's own.
    """

    def __init__(self, hidden_size: int, eps: float, context: ModelContext, prefix: str) -> None:
        self.weight, self.bias = context.new(hidden_size), context.new(hidden_size)
        self.eps, self.prefix = eps, prefix
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Two tensors."""
        yield f"{self.prefix}.weight", self.weight
        yield f"{self.prefix}.bias", self.bias

    def forward(self, x: Array) -> Array:
        """[..., hidden_size] -> the same shape."""
        centered = x - np.mean(x, axis=-1, keepdims=True)
        variance = np.mean(centered * centered, axis=-1, keepdims=True)
        return centered / np.sqrt(variance + self.eps) * self.weight + self.bias
