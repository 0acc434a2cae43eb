"""Rotary positions. Upstream twin: `vllm/model_executor/layers/rotary_embedding/`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.module import Module
from mini_vllm.transformers_utils.config import RopeConfig
from mini_vllm.utils.arrays import Array


def inverse_frequencies(head_dim: int, rope: RopeConfig) -> Array:
    """Angle per position of each pair of features, float32 [head_dim / 2], after the scaling rule.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/llama3_rope.py:33 —
    `Llama3RotaryEmbedding._compute_inv_freq`.
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    freq = (1.0 / (np.float32(rope.theta) ** exponent)).astype(np.float32)
    if rope.rope_type == "linear":
        return (freq / np.float32(rope.factor)).astype(np.float32)
    if rope.rope_type != "llama3":
        return freq
    length, low, high = rope.original_max_position_embeddings, rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / freq
    smooth = (length / wavelength - low) / (high - low) if low != high else np.zeros_like(freq)
    mixed = (1 - smooth) * freq / rope.factor + smooth * freq
    scaled = np.where(wavelength > length / low, freq / rope.factor, mixed)
    return np.where(wavelength < length / high, freq, scaled).astype(np.float32)


class RotaryEmbedding(Module):
    """Rotates queries and keys by their position (the two halves of a head are the pairs: "neox" style).

    Cosines and sines come from a table that grows with the longest position seen; angles are computed in float32.
    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/base.py:118 — `RotaryEmbedding`.
    """

    def __init__(self, head_dim: int, rope: RopeConfig, dtype: np.dtype[Any]) -> None:
        self.inv_freq = inverse_frequencies(head_dim, rope)
        self.dtype = dtype
        self._cos_sin = np.empty((0, 2, len(self.inv_freq)), dtype)

    def forward(self, positions: Array, *heads: Array) -> list[Array]:
        """Each of `heads` [T, H, D], rotated by the positions [T] of its tokens."""
        cos_sin = self.cos_sin(positions)[:, :, None]
        cos, sin = cos_sin[:, 0], cos_sin[:, 1]
        rotated = []
        for x in heads:
            first, second = np.split(x, 2, axis=-1)
            rotated.append(np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1))
        return rotated

    def cos_sin(self, positions: Array) -> Array:
        """Cosines and sines of these positions, [T, 2, head_dim / 2]."""
        self.reach(int(positions.max(initial=0)))
        return self._cos_sin.take(positions, axis=0)

    def reach(self, position: int) -> None:
        """Make the table long enough for this position."""
        if position >= len(self._cos_sin):
            size = max(1024, 1 << position.bit_length())
            angles = np.arange(size, dtype=np.float32)[:, None] * self.inv_freq
            self._cos_sin = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(self.dtype)


def get_rope(head_dim: int, rope: RopeConfig, context: ModelContext) -> RotaryEmbedding:
    """The rotary embedding of these settings: one for all layers of a model.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/__init__.py:33 — `get_rope`.
    """
    key = head_dim, rope
    if key not in context.ropes:
        context.ropes[key] = RotaryEmbedding(head_dim, rope, context.dtype)
    return context.ropes[key]
