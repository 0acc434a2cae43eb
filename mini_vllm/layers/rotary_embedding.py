"""Rotary positions. Upstream twin: `vllm/model_executor/layers/rotary_embedding/`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.module import Module
from mini_vllm.transformers_utils.config import RopeConfig
from mini_vllm.utils.arrays import Array


def inverse_frequencies(head_dim: int, rope: RopeConfig) -> Array:
    """Angle per position of each pair of features, float32 [rotated / 2], after the scaling rule.

    Of a head the first `rope.partial` is rotated.
    """
    dim = int(head_dim * rope.partial)
    if rope.rope_type != "default":
        from mini_vllm.layers.rotary_scaling import scaled_frequencies

        return scaled_frequencies(dim, rope)
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return (1.0 / (np.float32(rope.theta) ** exponent)).astype(np.float32)


class RotaryEmbedding(Module):
    """Rotates queries and keys by their position.

    Pairs are the two halves of what is rotated ("neox" style), or neighbours (`interleaved`, "GPT-J" style). Cosines
    and sines come from a table that grows with the longest position seen; angles are computed in float32.
    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/base.py:118 — `RotaryEmbedding`.
    """

    def __init__(self, head_dim: int, rope: RopeConfig, dtype: np.dtype[Any], interleaved: bool = False) -> None:
        self.inv_freq = inverse_frequencies(head_dim, rope)
        self.rotary_dim, self.is_partial = 2 * len(self.inv_freq), 2 * len(self.inv_freq) < head_dim
        self.dtype, self.interleaved, self.factor = dtype, interleaved, np.float32(rope.attention_factor)
        self._cos_sin = np.empty((0, 2, len(self.inv_freq)), dtype)

    def forward(self, positions: Array, *heads: Array) -> list[Array]:
        """Each of `heads` [T, H, D], rotated by the positions [T] of its tokens."""
        cos_sin = self.cos_sin(positions)[:, :, None]
        cos, sin = cos_sin[:, 0], cos_sin[:, 1]
        return [self._rotate(x, cos, sin) for x in heads]

    def _rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        rotated, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        if self.interleaved:
            first, second = rotated[..., ::2], rotated[..., 1::2]
            pairs = np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
            return np.concatenate([pairs.reshape(rotated.shape), rest], axis=-1)
        first, second = np.split(rotated, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def cos_sin(self, positions: Array) -> Array:
        """Cosines and sines of these positions, [T, 2, rotary_dim / 2]."""
        self.reach(int(positions.max(initial=0)))
        return self._cos_sin.take(positions, axis=0)

    def reach(self, position: int) -> None:
        """Make the table long enough for this position."""
        if position >= len(self._cos_sin):
            size = max(1024, 1 << position.bit_length())
            angles = np.arange(size, dtype=np.float32)[:, None] * self.inv_freq
            self._cos_sin = (np.stack([np.cos(angles), np.sin(angles)], axis=1) * self.factor).astype(self.dtype)


def get_rope(head_dim: int, rope: RopeConfig, context: ModelContext, interleaved: bool = False) -> RotaryEmbedding:
    """The rotary embedding of these settings: one for all layers of a model that have them.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/__init__.py:33 — `get_rope`.
    """
    key = head_dim, rope, interleaved
    if key not in context.ropes:
        context.ropes[key] = RotaryEmbedding(head_dim, rope, context.dtype, interleaved)
    return context.ropes[key]
