"""How keys and values may be stored, and what they cost.

| `kv_cache_dtype` | code | scale |
|---|---|---|
| int8, int8_per_token_head | int8 | one for each token and KV head, found when it is written, kept as float32 |
| fp8_per_token_head | FP8 E4M3 | the same |
| fp8, fp8_e4m3 | FP8 E4M3 | 1.0 for everything, as upstream's where a checkpoint brings none |

Upstream twin: `vllm/v1/kv_cache_interface.py`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

KV_CACHE_DTYPES = ("auto", "int8", "int8_per_token_head", "fp8", "fp8_e4m3", "fp8_per_token_head")


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
