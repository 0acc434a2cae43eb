"""The arithmetic that the architectures share: norms, rotary positions, SwiGLU, linear layers.

Activations are kept feature-major, [features, tokens]: `weight @ x` with the weight as checkpoints store it
([out, in]) is the fastest product that BLAS has for few tokens, and gate and up are two contiguous halves.
Upstream twins: `vllm/model_executor/layers/` (`layernorm.py`, `rotary_embedding/`, `activation.py`, `linear.py`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.platforms.cpu.memory import aligned_empty
from mini_vllm.platforms.cpu.threads import num_shares, one_blas_thread, one_core, run_shares
from mini_vllm.transformers_utils.config import RopeConfig

Array = np.ndarray[Any, Any]


class Workspace:
    """Named scratch arrays that grow and are used again, so that a step allocates nothing.

    A view handed out is valid until the same name is asked for with another shape.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._flat: dict[str, Array] = {}

    def get(self, name: str, *shape: int) -> Array:
        """An array of this shape with arbitrary contents."""
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.size < size:
            self._flat[name] = flat = aligned_empty((size,), self.dtype)
        return flat[:size].reshape(shape)


FEW_TOKENS, FEW_TOKENS_FOR_THREADS = 128, 4
"""Up to this many tokens a product is cut into small ones, where BLAS has one thread, and where it has more (the
small ones are then one thread's)."""
_WIDTH = 32
"""Tokens of a small product: two vectors of AVX-512."""
_SMALL_PRODUCT = 1_000_000


@lru_cache(maxsize=1024)
def _block_rows(rows: int, columns: int, tokens: int) -> int:
    """The most rows of a weight that divide it evenly and keep rows * columns * tokens within `_SMALL_PRODUCT`."""
    most = max(1, _SMALL_PRODUCT // (columns * tokens))
    return next((n for n in range(min(most, rows), 7, -1) if rows % n == 0), rows)


def project(weight: Any, x: Array, out: Array) -> None:
    """`out = weight @ x`. weight: [out, in], or a quantized `Linear`; x: [in, tokens]; out: [out, tokens], contiguous.

    OpenBLAS first copies ("packs") both factors into the order that its kernel reads, which few tokens do not pay back.
    Products of up to a million multiplications it does without, a fifth to a half faster. So few tokens are multiplied
    in blocks of rows of the weight and of `_WIDTH` tokens (one numpy call, and one for the tokens that are left over),
    with x in C order, which that kernel likes best.
    """
    tokens = x.shape[1]
    if not isinstance(weight, np.ndarray):
        weight.project_into(x, out)
    elif not 1 < tokens <= (FEW_TOKENS if one_core() else FEW_TOKENS_FOR_THREADS):
        np.matmul(weight, x, out=out)
    else:
        x = np.ascontiguousarray(x) if tokens >= 8 else x
        whole = tokens - tokens % _WIDTH
        if whole:
            _project_wide(weight, x[:, :whole], out[:, :whole])
        if whole < tokens:
            _project_narrow(weight, x[:, whole:], out[:, whole:])


def _project_narrow(weight: Array, x: Array, out: Array) -> None:
    """`project` for less than `_WIDTH` tokens."""
    rows = _block_rows(*weight.shape, x.shape[1])
    np.matmul(weight.reshape(-1, rows, weight.shape[1]), x, out=out.reshape(-1, rows, x.shape[1]))


def _project_wide(weight: Array, x: Array, out: Array) -> None:
    """`project` for a multiple of `_WIDTH` tokens. The arrays are cut into [blocks, rows, `_WIDTH`], none is copied."""
    columns, rows = weight.shape[1], _block_rows(*weight.shape, _WIDTH)
    np.matmul(
        weight.reshape(-1, 1, rows, columns),
        x.reshape(columns, -1, _WIDTH).transpose(1, 0, 2),
        out=out.reshape(len(weight) // rows, rows, -1, _WIDTH).transpose(0, 2, 1, 3),
    )


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


def silu_and_mul(gate: Array, up: Array, tmp: Array) -> None:
    """SwiGLU's middle, in place: `gate = gate / (1 + exp(-gate)) * up`. All [features, tokens].

    exp overflows to inf for a very negative gate, and gate / inf is 0, which is right; callers silence the warning.
    Upstream: upstream/vllm/model_executor/layers/activation.py:118 — `SiluAndMul`.
    """
    np.negative(gate, out=tmp)
    np.exp(tmp, out=tmp)
    tmp += 1.0
    np.divide(gate, tmp, out=gate)
    gate *= up


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


def logits_of(hidden: Array, lm_head: Array, out: Array | None = None) -> Array:
    """Hidden rows [rows, features] times the output embedding [vocab, features] -> [rows, vocab], into `out` if given.

    With few rows `lm_head @ hidden.T` and a transposing copy is faster; with many, the copy costs more than it saves.
    Many rows are shared out among threads.
    """
    shares = num_shares(len(hidden))
    if out is None:
        out = np.empty((len(hidden), len(lm_head)), hidden.dtype)
    if shares == 1 and len(hidden) <= 64:
        logits = aligned_empty((len(lm_head), len(hidden)), hidden.dtype)
        project(lm_head, hidden.T, logits)
        np.copyto(out, logits.T)
        return out
    size = -(-len(hidden) // shares)
    parts = [slice(first, first + size) for first in range(0, len(hidden), size)]
    with one_blas_thread(shares > 1):
        run_shares(lambda part: np.matmul(hidden[part], lm_head.T, out=out[part]), parts)
    return out
