"""Specs of layers that keep something else than the keys and values of every token, or of a window.

| spec | a layer keeps | its manager |
|---|---|---|
| `MambaSpec` | a state: one for the whole text before a token | `core/mamba_manager.py` |
| `CrossAttentionSpec` | keys and values of the encoder's output, written once | `core/cross_attention_manager.py` |
| `ChunkedLocalAttentionSpec` | keys and values of one chunk of the text | `core/chunked_local_attention_manager.py` |

Upstream twin: `vllm/v1/kv_cache_interface.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mini_vllm.kv_cache_interface import (
    MAMBA_CACHE_MODES,
    AttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVCacheSpecKind,
)
from mini_vllm.utils.math_utils import cdiv


@dataclass(frozen=True)
class MambaSpec(KVCacheSpec):
    """A state that one token after the other changes: a "block" holds the state after the last of its tokens.

    | `mamba_cache_mode` | states that are kept | prefix hits |
    |---|---|---|
    | none | one a request; `block_size` is the longest text, so that a request has one block | no |
    | align | the one after each step; steps of a prompt end where a block does | yes |
    | all | one for each block of tokens, which the layer itself writes | yes |

    Args:
        shapes: of the arrays of one state, without the axis of the blocks: mostly (convolution, recurrence).
        dtypes: of the numbers of each of them, as numpy has them.
        page_size_padded: bytes of a block where it has to be as large as others' are; None: what the state needs.
        mamba_type: which layer it is; layers of two types do not share a group.
        num_speculative_blocks: states more than that, one for each draft token of a step.

    Raises:
        ValueError: names the argument, its value and what is allowed.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:563 — `MambaSpec`.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: int | None = None
    mamba_type: str = "mamba2"
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0

    def __post_init__(self) -> None:
        if self.mamba_cache_mode not in MAMBA_CACHE_MODES:
            allowed = ", ".join(MAMBA_CACHE_MODES)
            raise ValueError(f"mamba_cache_mode must be one of {allowed}, got {self.mamba_cache_mode!r}")
        if len(self.shapes) != len(self.dtypes):
            raise ValueError(f"dtypes must be one for each of the {len(self.shapes)} shapes, got {self.dtypes!r}")
        if self.num_speculative_blocks < 0:
            raise ValueError(f"num_speculative_blocks must be at least 0, got {self.num_speculative_blocks}")
        if self.page_size_padded is not None and self.page_size_padded < self.state_bytes:
            raise ValueError(f"page_size_padded must be at least {self.state_bytes}, got {self.page_size_padded}")

    @property
    def state_bytes(self) -> int:
        """Bytes of one state, without padding."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in pairs)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer, whatever `block_size` is."""
        return self.state_bytes if self.page_size_padded is None else self.page_size_padded

    @property
    def kind(self) -> KVCacheSpecKind:
        """MAMBA."""
        return KVCacheSpecKind.MAMBA

    def max_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int:
        """States that a request holds at most: all, the last and the one before it, or the last.

        Upstream: upstream/vllm/v1/kv_cache_interface.py:582 — `MambaSpec.max_memory_usage_bytes`, in bytes.
        """
        states = {"all": cdiv(max_model_len, self.block_size), "align": 2, "none": 1}[self.mamba_cache_mode]
        return states + self.num_speculative_blocks


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Keys and values of what the encoder made of a request's other input; the decoder's tokens add nothing.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:602 — `CrossAttentionSpec`.
    """

    @property
    def kind(self) -> KVCacheSpecKind:
        """CROSS_ATTENTION."""
        return KVCacheSpecKind.CROSS_ATTENTION

    def max_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int:
        """An input of the encoder is computed in one step, which has `max_num_batched_tokens` for it as well.

        Upstream: upstream/vllm/v1/kv_cache_interface.py:607 — `CrossAttentionSpec.max_memory_usage_bytes`, in bytes.
        """
        return cdiv(max_num_batched_tokens, self.block_size)


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """The text is cut into chunks of `attention_chunk_size` tokens; a query sees its own chunk, up to itself.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:407 — `ChunkedLocalAttentionSpec`.
    """

    attention_chunk_size: int

    @property
    def kind(self) -> KVCacheSpecKind:
        """CHUNKED_LOCAL_ATTENTION."""
        return KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION

    def max_admission_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int:
        """Blocks that a request holds at most: a chunk of attention, and the tokens of a step.

        Upstream: upstream/vllm/v1/kv_cache_interface.py:410 — `max_admission_blocks_per_request`.
        """
        return cdiv(min(self.attention_chunk_size + max_num_batched_tokens, max_model_len), self.block_size)

    def max_blocks_per_request(self, max_num_batched_tokens: int, max_model_len: int) -> int:
        """As `max_admission_blocks_per_request`: what is admitted at the start can be admitted later."""
        return self.max_admission_blocks_per_request(max_num_batched_tokens, max_model_len)


def mamba_specs(kv_cache_config: KVCacheConfig) -> list[MambaSpec]:
    """Of the groups that keep a state.

    Upstream: upstream/vllm/v1/kv_cache_interface.py:857 — `KVCacheConfig.has_mamba_layers`.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return [spec for spec in specs if isinstance(spec, MambaSpec)]
