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
    """Angle per position of each pair of features, float32 [rotated / 2], after the scaling rule.

    Of a head the first `rope.partial` is rotated. Rules that depend on the length of a sequence take the longest that
    is served, so that keys in the cache never have to be rotated again:
    upstream/vllm/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py:51 — "Force long factors".
    """
    dim = int(head_dim * rope.partial)
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    freq = (1.0 / (np.float32(_base(dim, rope)) ** exponent)).astype(np.float32)
    if rope.rope_type == "linear":
        return (freq / np.float32(rope.factor)).astype(np.float32)
    if rope.rope_type == "longrope":
        is_long = rope.served > rope.original_max_position_embeddings
        factors = np.array(rope.long_factor if is_long else rope.short_factor, np.float32)
        if factors.shape != freq.shape:
            raise ValueError(f"rope_scaling: short_factor and long_factor must have {len(freq)} numbers each")
        return (freq / factors).astype(np.float32)
    if rope.rope_type == "yarn":
        return _yarn(freq, dim, rope)
    return _llama3(freq, rope) if rope.rope_type == "llama3" else freq


def _base(dim: int, rope: RopeConfig) -> float:
    """theta; of "dynamic", raised so far that the slowest pair turns as little over the longest sequence as it did over
    the context of the training (NTK-aware scaling).

    transformers raises it anew whenever a sequence grows, which no cache of rotated keys survives; the two are equal
    for the longest sequence. Upstream raises it only where a config says `max_trained_positions`:
    upstream/vllm/model_executor/layers/rotary_embedding/__init__.py:214 — "max_trained_positions = ".
    """
    if rope.rope_type != "dynamic" or rope.served <= rope.max_position_embeddings:
        return rope.theta
    stretch = rope.factor * rope.served / rope.max_position_embeddings - (rope.factor - 1)
    return float(rope.theta * stretch ** (dim / (dim - 2)))


def _yarn(freq: Array, dim: int, rope: RopeConfig) -> Array:
    """Fast pairs as they are, slow ones stretched by `factor`, a ramp between.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/yarn_scaling_rope.py:49 —
    `YaRNScalingRotaryEmbedding._compute_inv_freq`.
    """

    def pair(rotations: float) -> float:
        """Number of the pair that turns so often over the original context; not rounded."""
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    stretched = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    return (freq / rope.factor * stretched + freq * (1 - stretched)).astype(np.float32)


def _llama3(freq: Array, rope: RopeConfig) -> Array:
    """Long waves stretched by `factor`, short ones as they are, a ramp between.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/llama3_rope.py:33 —
    `Llama3RotaryEmbedding._compute_inv_freq`.
    """
    length, low, high = rope.original_max_position_embeddings, rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / freq
    smooth = (length / wavelength - low) / (high - low) if low != high else np.zeros_like(freq)
    mixed = (1 - smooth) * freq / rope.factor + smooth * freq
    scaled = np.where(wavelength > length / low, freq / rope.factor, mixed)
    return np.where(wavelength < length / high, freq, scaled).astype(np.float32)


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
