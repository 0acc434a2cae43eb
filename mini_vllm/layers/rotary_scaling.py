"""Rotary positions for contexts longer than those of the training: linear, dynamic, yarn, longrope, llama3.

Rules that depend on the length of a sequence take the longest that is served, so that keys in the cache never have to
be rotated again: upstream/vllm/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py:51 — "Force long".
"""

from __future__ import annotations

import math

import numpy as np

from mini_vllm.transformers_utils.config_rope import RopeConfig
from mini_vllm.utils.arrays import Array


def scaled_frequencies(dim: int, rope: RopeConfig) -> Array:
    """See `inverse_frequencies`; dim: features that are rotated."""
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
