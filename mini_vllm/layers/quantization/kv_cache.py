"""Keys and values in eight bits: which modes there are, what they cost, and their arithmetic.

| `kv_cache_dtype` | code | scale |
|---|---|---|
| int8, int8_per_token_head | int8 | one for each token and KV head, found when it is written, kept as float32 |
| fp8_per_token_head | FP8 E4M3 | the same |
| fp8, fp8_e4m3 | FP8 E4M3 | 1.0 for everything, as upstream's where a checkpoint brings none |

Upstream twins: `KVQuantMode` in `vllm/v1/kv_cache_interface.py`, and the kernels that write the cache.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from mini_vllm.layers.quantization.utils.fp8_utils import E4M3_MAX, decode_e4m3, encode_e4m3

Array = np.ndarray[Any, Any]

KV_CACHE_DTYPES = ("auto", "int8", "int8_per_token_head", "fp8", "fp8_e4m3", "fp8_per_token_head")
_SMALLEST_SCALE = np.float32(1e-6)


class KVQuantMode(IntEnum):
    """Upstream: upstream/vllm/v1/kv_cache_interface.py:32 — `KVQuantMode`."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3

    @property
    def is_per_token_head(self) -> bool:
        """True where every token has a scale for each KV head."""
        return self in (KVQuantMode.INT8_PER_TOKEN_HEAD, KVQuantMode.FP8_PER_TOKEN_HEAD)

    @property
    def code_type(self) -> Any:
        """numpy type of a stored number."""
        return np.int8 if self == KVQuantMode.INT8_PER_TOKEN_HEAD else np.uint8


def get_kv_quant_mode(kv_cache_dtype: str) -> KVQuantMode:
    """The mode of an engine argument.

    Raises:
        ValueError: names the argument, its value and what is allowed.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:59 — `get_kv_quant_mode`.
    """
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise ValueError(f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, got {kv_cache_dtype!r}")
    if kv_cache_dtype in ("int8", "int8_per_token_head"):
        return KVQuantMode.INT8_PER_TOKEN_HEAD
    if kv_cache_dtype == "fp8_per_token_head":
        return KVQuantMode.FP8_PER_TOKEN_HEAD
    return KVQuantMode.FP8_PER_TENSOR if kv_cache_dtype.startswith("fp8") else KVQuantMode.NONE


def kv_bytes_per_token(num_kv_heads: int, head_dim: int, kv_cache_dtype: str = "auto", itemsize: int = 4) -> int:
    """Bytes of keys and values of one token, scales included.

    Args:
        num_kv_heads: of all layers together. itemsize: bytes of a number under "auto".

    Upstream: upstream/vllm/v1/kv_cache_interface.py:152 — `AttentionSpec.page_size_bytes` — for a whole block.
    """
    mode = get_kv_quant_mode(kv_cache_dtype)
    per_head = head_dim * (itemsize if mode == KVQuantMode.NONE else 1) + 4 * mode.is_per_token_head
    return 2 * num_kv_heads * per_head


def quantize_kv(x: Array, mode: KVQuantMode) -> tuple[Array, Array | None]:
    """Codes of the shape of x [..., head_dim], and float32 scales [...], None where the scale is 1.

    int8 codes are rounded to nearest. Upstream's kernel stores a float into an int8 pointer, which cuts the fraction
    off, and so loses a bit: upstream/tests/quantization/test_per_token_kv_cache.py:64 — "INT8 Triton stores truncate".
    Upstream: upstream/vllm/v1/attention/ops/triton_reshape_and_cache_flash.py:139 — `_reshape_cache_per_token_head`.
    """
    if mode == KVQuantMode.FP8_PER_TENSOR:
        return encode_e4m3(x), None
    largest = np.float32(127 if mode == KVQuantMode.INT8_PER_TOKEN_HEAD else E4M3_MAX)
    scales = np.maximum(np.abs(x).max(axis=-1).astype(np.float32) / largest, _SMALLEST_SCALE)
    scaled = x * (1 / scales)[..., None]
    if mode == KVQuantMode.FP8_PER_TOKEN_HEAD:
        return encode_e4m3(scaled), scales
    return np.clip(np.rint(scaled), -128, 127).astype(np.int8), scales


def dequantize_kv(codes: Array, scales: Array | None, out: Array) -> Array:
    """Codes [..., head_dim] times scales [...] -> `out`, the same shape, any float type."""
    if codes.dtype == np.uint8:
        decode_e4m3(codes, out=out)
    else:
        np.copyto(out, codes)
    if scales is not None:
        out *= scales[..., None]
    return out
