"""What an attention backend is: a name, predicates about what it can do, and the attention of a step. And what all of
them have to know about that step.

Upstream twin: `vllm/v1/attention/backend.py`. There a backend names three classes (impl, metadata builder, KV layout);
here `begin_step` is the builder, the callable that it returns is the impl, and all share one KV layout
(`attention/kv_cache.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.kv_cache_interface import KV_CACHE_DTYPES
from mini_vllm.utils.arrays import Array

AttentionStep = Callable[[int, Array, Array, Array], Array]
"""attn(layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D], valid until the next call."""


@dataclass(slots=True)
class AttentionMetadata:
    """A ragged batch of R requests with T tokens, one request after the other.

    query_start_loc [R + 1]: first token of each request, then T.
    seq_lens [R]: tokens of each request whose keys are in the cache once this step has written its own.
    block_tables [R, max_blocks]: physical block of each logical block; entries past a request's last are 0.
    slot_mapping [T]: where each token's key and value go, block * block_size + offset.

    A step that is padded for a CUDA graph has more: requests after the last real one with no tokens, seq_lens 0 and the
    null block, and tokens past query_start_loc[R] with slot -1. Nothing is written or computed for them.

    Upstream: upstream/vllm/v1/attention/backend.py:353 — `CommonAttentionMetadata`.
    """

    query_start_loc: Array
    seq_lens: Array
    block_tables: Array
    slot_mapping: Array

    @property
    def num_reqs(self) -> int:
        """R."""
        return len(self.seq_lens)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.slot_mapping)

    @property
    def query_lens(self) -> Array:
        """Tokens of each request in this step, [R]."""
        return np.diff(self.query_start_loc)

    def without_padding(self) -> AttentionMetadata:
        """The real requests and tokens alone; itself where nothing is padded."""
        num_tokens = int(self.query_start_loc[-1])
        if num_tokens == self.num_tokens and self.query_start_loc[-2] < num_tokens:
            return self
        num_reqs = int(np.searchsorted(self.query_start_loc, num_tokens))
        return AttentionMetadata(
            self.query_start_loc[: num_reqs + 1],
            self.seq_lens[:num_reqs],
            self.block_tables[:num_reqs],
            self.slot_mapping[:num_tokens],
        )


class AttentionCGSupport(Enum):
    """For which batches the attention itself may stand inside a CUDA graph.

    Upstream: upstream/vllm/v1/attention/backend.py:499 — `AttentionCGSupport`.
    """

    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionSelectorConfig(NamedTuple):
    """All that the choice of a backend may depend on. `block_size` None: the user did not ask for one.

    A sliding window is no part of it: it is an argument of the backend, which every backend must take.
    Upstream: upstream/vllm/v1/attention/selector.py:21 — `AttentionSelectorConfig`.
    """

    head_size: int
    dtype: str = "float32"
    kv_cache_dtype: str | None = "auto"
    block_size: int | None = None
    use_mla: bool = False
    has_sink: bool = False
    use_sparse: bool = False
    use_mm_prefix: bool = False
    use_per_head_quant_scales: bool = False
    attn_type: str = "decoder"
    use_non_causal: bool = False
    use_batch_invariant: bool = False


class AttentionBackend(ABC):
    """Base of the backends; the predicates below are for "can everything that is ordinary", subclasses say otherwise.

    Args:
        kv_cache: the arrays, already made.
        num_heads: query heads; the KV heads are the cache's.
        sliding_windows: for each layer how many positions a query sees, its own included; None: all.
        sinks: a bias for each query head [Hq], or for each layer and head [L, Hq], the score of one more key whose
            value is zero; None: none.
        scale: of the scores; None: head size ** -0.5.
        logits_soft_cap: scores s become cap * tanh(s / cap); None: they stay.

    Upstream: upstream/vllm/v1/attention/backend.py:55 — `AttentionBackend`.
    """

    name: ClassVar[str] = ""
    cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    supported_dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    supported_kv_cache_dtypes: ClassVar[tuple[str, ...]] = KV_CACHE_DTYPES
    supported_head_sizes: ClassVar[tuple[int, ...]] = ()
    block_size_multiple: ClassVar[int] = 1
    has_sink_support: ClassVar[bool] = False
    is_mla: ClassVar[bool] = False

    def __init__(
        self, kv_cache: KVCache, num_heads: int, sliding_windows: Sequence[int | None], sinks: Array | None = None,
        scale: float | None = None, logits_soft_cap: float | None = None,
    ) -> None:  # fmt: skip
        if sinks is not None and not self.has_sink_support:
            raise ValueError(f"attention backend {self.name!r} does not support attention sinks")
        self.kv_cache, self.num_heads, self.sliding_windows = kv_cache, num_heads, tuple(sliding_windows)
        self.num_kv_heads, self.head_dim = kv_cache.num_kv_heads, kv_cache.head_dim
        self.group, self.sinks = num_heads // kv_cache.num_kv_heads, sinks
        self.scale = kv_cache.head_dim**-0.5 if scale is None else scale
        self.logits_soft_cap = logits_soft_cap

    def sinks_of(self, layer: int) -> Array | None:
        """The bias of each query head [Hq] in this layer; None: none."""
        return self.sinks if self.sinks is None or self.sinks.ndim == 1 else self.sinks[layer]

    def cap(self, scores: Array) -> Array:
        """Scores, which have been scaled, with the soft cap, in place.

        Upstream: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:28 — `apply_softcap`.
        """
        if self.logits_soft_cap is not None:
            scores /= self.logits_soft_cap
            np.tanh(scores, out=scores)
            scores *= self.logits_soft_cap
        return scores

    @abstractmethod
    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """The attention of this step: the callable that the model calls in each layer.

        Upstream: upstream/vllm/v1/attention/backend.py:583 — `AttentionMetadataBuilder.build`.
        """

    @classmethod
    def validate_configuration(cls, cfg: AttentionSelectorConfig) -> list[str]:
        """Why this backend cannot be used, in upstream's words and order; an empty list: it can.

        Upstream: upstream/vllm/v1/attention/backend.py:271 — `AttentionBackend.validate_configuration`.
        """
        checks = {
            "head_size not supported": cls.supported_head_sizes and cfg.head_size not in cls.supported_head_sizes,
            "dtype not supported": cfg.dtype not in cls.supported_dtypes,
            "kv_cache_dtype not supported": cfg.kv_cache_dtype not in (None, *cls.supported_kv_cache_dtypes),
            "block_size not supported": (cfg.block_size or 0) % cls.block_size_multiple,
            "partial multimodal token full attention not supported": cfg.use_mm_prefix,
            "MLA not supported": cfg.use_mla and not cls.is_mla,
            "non-MLA not supported": cls.is_mla and not cfg.use_mla,
            "attention sinks not supported": cfg.has_sink and not cls.has_sink_support,
            "sparse not supported": cfg.use_sparse,
            "per-head quant scales not supported": cfg.use_per_head_quant_scales,
            f"attention type {cfg.attn_type} not supported": cfg.attn_type != "decoder",
            "non-causal attention not supported": cfg.use_non_causal,
            "batch invariance not supported": cfg.use_batch_invariant,
        }
        return [reason for reason, holds in checks.items() if holds]


def tokens_to_write(metadata: AttentionMetadata) -> tuple[Array | slice, Array]:
    """(which tokens of the step have a slot, their slots): a slot below 0 marks a token that is not to be stored.

    Upstream's kernels return at once for such a token: upstream/csrc/cache_kernels.cu:318 — "if (slot_idx < 0) {".
    """
    slots = metadata.slot_mapping
    if len(slots) and slots.min() < 0:
        tokens = np.flatnonzero(slots >= 0)
        return tokens, slots[tokens]
    return slice(None), slots


def plan_without_padding(plan: Callable[[AttentionMetadata], AttentionStep], metadata: AttentionMetadata) -> Any:
    """`plan` for the real requests and tokens of a padded step; padding tokens come out as zeros.

    For backends that know nothing of padding. A step without padding is planned as it is.
    """
    real = metadata.without_padding()
    if real is metadata:
        return plan(metadata)
    return on_real_tokens(plan(real) if real.num_tokens else None, real.num_tokens)


def on_real_tokens(attn: AttentionStep | None, num_tokens: int) -> AttentionStep:
    """`attn` sees the first `num_tokens` tokens alone; the padding behind them comes out as zeros. None: all zeros."""

    def padded(layer: int, q: Array, k: Array, v: Array) -> Array:
        out = np.zeros((len(q), q.shape[1] * q.shape[2]), q.dtype)
        if attn is not None:
            out[:num_tokens] = attn(layer, q[:num_tokens], k[:num_tokens], v[:num_tokens])
        return out

    return padded
