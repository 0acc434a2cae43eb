"""Rotary positions, feature-major. Upstream twin: `vllm/model_executor/layers/rotary_embedding/`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

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


class RotaryPairs:
    """Heads to be rotated, [heads, 2, head_dim / 2, tokens], scratch of that shape, and the halves of both."""

    def __init__(self, pairs: Array, tmp: Array) -> None:
        self.pairs, self.tmp = pairs, tmp
        self.first, self.second = pairs[:, 0], pairs[:, 1]
        self.tmp_first, self.tmp_second = tmp[:, 0], tmp[:, 1]


class RotaryEmbedding:
    """Rotates queries and keys by their position (the two halves of a head are the pairs: "neox" style).

    Cosines and sines come from a table that grows with the longest position seen.
    """

    def __init__(self, head_dim: int, rope: RopeConfig, dtype: np.dtype[Any]) -> None:
        self.inv_freq = inverse_frequencies(head_dim, rope)
        self.dtype = dtype
        self._cos_sin = np.empty((0, 2, len(self.inv_freq)), dtype)

    def cos_sin(self, positions: Array) -> tuple[Array, Array]:
        """Cosines and sines of these positions, each [head_dim / 2, tokens]; the angles are computed in float32."""
        self.reach(int(positions.max(initial=0)))
        picked = self._cos_sin.take(positions, axis=0)
        return np.ascontiguousarray(picked[:, 0].T), np.ascontiguousarray(picked[:, 1].T)

    def reach(self, position: int) -> None:
        """Make the table long enough for this position."""
        if position >= len(self._cos_sin):
            size = max(1024, 1 << position.bit_length())
            angles = np.arange(size, dtype=np.float32)[:, None] * self.inv_freq
            self._cos_sin = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(self.dtype)

    @staticmethod
    def rotate(x: RotaryPairs, cos: Array, sin: Array) -> None:
        """Rotate in place. cos, sin: [head_dim / 2, tokens]."""
        np.multiply(x.pairs, sin, out=x.tmp)
        np.multiply(x.pairs, cos, out=x.pairs)
        np.subtract(x.first, x.tmp_second, out=x.first)
        np.add(x.second, x.tmp_first, out=x.second)
