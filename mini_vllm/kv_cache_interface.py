"""What a layer keeps in the KV cache, how layers share block tables, and how keys and values may be stored.

A `KVCacheSpec` describes one layer. Layers that need the same blocks form a group, `KVCacheGroupSpec`: one block table
serves them all. `KVCacheConfig` is all groups over one pool of blocks.

| `kv_cache_dtype` | code | scale |
|---|---|---|
| int8, int8_per_token_head | int8 | one for each token and KV head, found when it is written, kept as float32 |
| fp8_per_token_head | FP8 E4M3 | the same |
| fp8, fp8_e4m3 | FP8 E4M3 | 1.0 for everything, as upstream's where a checkpoint brings none |

Upstream twin: `vllm/v1/kv_cache_interface.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from mini_vllm.utils.checks import shown
from mini_vllm.utils.math_utils import cdiv

KV_CACHE_DTYPES = ("auto", "int8", "int8_per_token_head", "fp8", "fp8_e4m3", "fp8_per_token_head")
MAMBA_CACHE_MODES = ("none", "align", "all")


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
        raise ValueError(f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, got {shown(kv_cache_dtype)}")
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


class SpecMismatchError(ValueError):
    """Layers that cannot share a KV cache group."""


class KVCacheSpecKind(str, Enum):
    """A word for each type of spec; KV cache events carry it.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:81 — `KVCacheSpecKind`.
    """

    FULL_ATTENTION = "full_attention"
    MLA_ATTENTION = "mla_attention"
    SLIDING_WINDOW = "sliding_window"
    MAMBA = "mamba"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    CROSS_ATTENTION = "cross_attention"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class KVCacheSpec:
    """What one layer keeps. `block_size`: tokens in a block.

    A type of layer that keeps something else (a state, an encoder's output) is a subclass and a manager
    (`core/kv_cache_specs.py`, `core/other_managers.py`); nothing else has to know it.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:95 — `KVCacheSpec`.
    """

    block_size: int

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of this layer."""
        raise NotImplementedError(f"{type(self).__name__} has no page size")

    @property
    def kind(self) -> KVCacheSpecKind:
        """Upstream: upstream/vllm/v1/kv_cache_interface.py:768 — `get_kv_cache_spec_kind`."""
        return KVCacheSpecKind.UNKNOWN

    def max_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Blocks that a request of `max_model_len` tokens holds at most, at any one time.

        Upstream: upstream/vllm/v1/kv_cache_interface.py:117 — `KVCacheSpec.max_memory_usage_bytes`, in bytes.
        """
        return cdiv(max_model_len, self.block_size)

    def max_admission_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int | None:
        """As many as it is asked for at most when it comes, where blocks go back on the way; None: no such limit."""
        return None

    @classmethod
    def merge(cls, specs: Sequence[KVCacheSpec]) -> KVCacheSpec:
        """One spec for layers that are to share a group.

        Raises:
            SpecMismatchError: they differ.

        Upstream: upstream/vllm/v1/kv_cache_interface.py:133 — `KVCacheSpec.merge`.
        """
        if any(spec != specs[0] for spec in specs):
            raise SpecMismatchError("all layers of a KV cache group must have the same spec")
        return specs[0]


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """Keys and values of every token. `head_size`: numbers of one head; `dtype`: of the numbers under "auto".

    Upstream: upstream/vllm/v1/kv_cache_interface.py:144 — `AttentionSpec`.
    """

    num_kv_heads: int
    head_size: int
    dtype: Any = "float32"
    kv_cache_dtype: str = "auto"

    @property
    def page_size_bytes(self) -> int:
        """Bytes of keys, values and scales of one block of one layer."""
        itemsize = np.dtype(self.dtype).itemsize
        return self.block_size * kv_bytes_per_token(self.num_kv_heads, self.head_size, self.kv_cache_dtype, itemsize)


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Every token is kept until the request ends.

    `sliding_window` is set where a layer with a window is *managed* as a full one (`disable_hybrid_kv_cache_manager`):
    its attention looks at the window alone, its blocks are kept all the same.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:188 — `FullAttentionSpec`.
    """

    sliding_window: int | None = None

    @property
    def kind(self) -> KVCacheSpecKind:
        """FULL_ATTENTION."""
        return KVCacheSpecKind.FULL_ATTENTION

    @classmethod
    def merge(cls, specs: Sequence[KVCacheSpec]) -> KVCacheSpec:
        """Full layers with and without a window go together; two windows do not.

        Upstream: upstream/vllm/v1/kv_cache_interface.py:233 — `FullAttentionSpec.merge`.
        """
        full = [spec for spec in specs if isinstance(spec, FullAttentionSpec)]
        windows = {spec.sliding_window for spec in full if spec.sliding_window is not None}
        if len(full) < len(specs):
            raise SpecMismatchError("all layers of this KV cache group must be full attention")
        if len(windows) > 1:
            raise ValueError(f"all layers of a KV cache group must have the same window, got {sorted(windows)}")
        merged = replace(full[0], sliding_window=windows.pop() if windows else None)
        names = [f.name for f in fields(AttentionSpec)]
        if any(getattr(spec, name) != getattr(merged, name) for spec in full for name in names):
            raise SpecMismatchError("all layers of a KV cache group must have the same attention spec")
        return merged


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    """Every token's latent is kept: one row for all heads, which is key and value. `head_size`: numbers of that row.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:337 — `MLAAttentionSpec`.
    """

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer: no second row for values."""
        return self.block_size * self.num_kv_heads * self.head_size * np.dtype(self.dtype).itemsize

    @property
    def kind(self) -> KVCacheSpecKind:
        """MLA_ATTENTION."""
        return KVCacheSpecKind.MLA_ATTENTION


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """A query sees `sliding_window` tokens, its own included; blocks that no query will see again are freed.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:435 — `SlidingWindowSpec`.
    """

    sliding_window: int

    @property
    def kind(self) -> KVCacheSpecKind:
        """SLIDING_WINDOW."""
        return KVCacheSpecKind.SLIDING_WINDOW

    def max_admission_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Blocks that a request holds at most: the window before a chunk, the chunk, and one more.

        One more because a window need not begin with a block: with blocks of 4, [XXCD][EF] holds the window CDEF.

        Upstream: upstream/vllm/v1/kv_cache_interface.py:463 — `SlidingWindowSpec.max_admission_blocks_per_request`.
        """
        num_tokens = min(self.sliding_window - 1 + max_num_batched_tokens, max_model_len)
        return cdiv(num_tokens, self.block_size) + 1

    def max_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int:
        """As `max_admission_blocks_per_request`: what is admitted at the start can be admitted later."""
        return self.max_admission_blocks_per_request(max_num_batched_tokens, max_model_len)


@dataclass
class KVCacheGroupSpec:
    """Layers that share one block table; for the bookkeeping they are one layer.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:823 — `KVCacheGroupSpec`.
    """

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec

    @property
    def keeps_state(self) -> bool:
        """Its layers keep a state (`MambaSpec`), in arrays of their own."""
        return self.kv_cache_spec.kind == KVCacheSpecKind.MAMBA


@dataclass
class KVCacheTensor:
    """One pool of memory, `size` bytes, and the layers that use it: one of each group, in different blocks.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:813 — `KVCacheTensor`.
    """

    size: int
    shared_by: list[str]


@dataclass
class KVCacheConfig:
    """All groups of a model over one pool of `num_blocks` blocks, the null block included.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:838 — `KVCacheConfig`.
    """

    num_blocks: int
    kv_cache_tensors: list[KVCacheTensor]
    kv_cache_groups: list[KVCacheGroupSpec]
