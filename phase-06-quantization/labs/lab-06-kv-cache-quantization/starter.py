"""Lab 06-06: keys and values in eight bits: int8 with a scale per token and head, fp8 with or without, and the room.

K and V of a sequence are [tokens, kv_heads, head_dim]; here they are treated alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
E4M3_MAX = 448.0
SMALLEST_SCALE = 1e-6
"""Floor of a scale, so that a token of zeros divides nothing by zero."""
MODES = ("bf16", "fp8", "int8_per_token_head", "fp8_per_token_head")


def quantize_int8_per_token_head(x: Array) -> tuple[Array, Array]:
    """int8 codes with a scale for each token and KV head, found when the token is written.

    Args:
        x: floats [tokens, kv_heads, head_dim].

    Returns:
        codes: int8, the shape of x: the nearest multiple of the scale, half-way between two the even one.
        scales: float32 [tokens, kv_heads]: the largest magnitude has code 127 or -127; at least SMALLEST_SCALE.

    Upstream: upstream/vllm/v1/attention/ops/triton_reshape_and_cache_flash.py:139 — `_reshape_cache_per_token_head` —
    cuts the fraction off instead of rounding.
    """
    raise NotImplementedError("int8 codes, and a scale for each token and head")


def round_to_e4m3(x: Array) -> Array:
    """The nearest fp8 E4M3 number of each x, as floats of the same type.

    Three bits of mantissa: between 2^e and 2^(e + 1) the numbers are 2^(e - 3) apart. From 2^-6 down the distance stays
    2^-9. The largest is 448; what is beyond it becomes 448, with its sign. Ties go to the even multiple of the step.
    """
    raise NotImplementedError("the nearest E4M3 numbers")


def fake_fp8(x: Array, scale: float = 1.0) -> Array:
    """x after a round trip through an fp8 cache with one scale for everything, which holds 448 scales; x's type."""
    raise NotImplementedError("what is left of x after an fp8 cache with this scale")


def fake_fp8_per_token_head(x: Array) -> Array:
    """The same with a scale for each token and head [tokens, heads, dim]: the largest magnitude becomes 448 scales; at
    least SMALLEST_SCALE. x's type."""
    raise NotImplementedError("what is left of x after fp8 with a scale for each token and head")


def attend(q: Array, k: Array, v: Array) -> Array:
    """Softmax attention of one query per head over float keys and values. Given.

    q: [heads, dim]; k, v: [tokens, heads, dim] -> [heads, dim]. As many KV heads as query heads, to keep it short.
    """
    scores = np.einsum("hd,thd->th", q, k) / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=0))
    return np.einsum("th,thd->hd", weights / weights.sum(axis=0), v)


def attend_quantized(q: Array, k: Array, k_scales: Array, v: Array, v_scales: Array) -> Array:
    """`attend` straight from the int8 codes, as a kernel does it: each scale is applied to a number, never to a row.

    Args:
        q: floats [heads, dim].
        k, v: int8 codes [tokens, heads, dim].
        k_scales, v_scales: float32 [tokens, heads].

    Returns:
        [heads, dim], of q's dtype. Memory: less than K's codes take, the arguments aside; so neither K nor V is ever
        there as floats.
    """
    raise NotImplementedError("attention from codes and scales, without the floats of K or V")


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, mode: str) -> int:
    """Bytes of keys and values of one token in all layers, scales (float32) included.

    Raises:
        ValueError: "mode must be one of ..." where it is none of MODES.
    """
    raise NotImplementedError("the bytes of one token's keys and values in all layers")


def kv_capacity_tokens(memory_bytes: int, bytes_per_token: int, block_size: int) -> int:
    """Tokens of KV cache in this memory: whole blocks only."""
    raise NotImplementedError("how many tokens fit, in whole blocks")
