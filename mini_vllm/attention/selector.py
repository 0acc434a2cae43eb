"""Which attention backend an engine gets, and why. Chosen once, at the start, and never during serving.

An explicit choice is checked and then obeyed or refused, never replaced by another backend. Without one, the first
backend in the order of priority that can do everything asked for is taken.

Upstream twins: `vllm/v1/attention/selector.py`, and `vllm/platforms/cuda.py` for the order and the errors. Ours differ
in what they can do: `dense` is a reference, slow, and therefore last. Only `enforce_eager=True`, which asks for the
plain program, takes it first (upstream's flag leaves attention as it is).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mini_vllm.attention.backend import AttentionSelectorConfig
from mini_vllm.attention.backends.registry import get_attention_backend
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.layers.batch_invariant import vllm_is_batch_invariant

PRIORITIES = ("paged_gather", "paged_online", "split_kv", "dense")
"""Best first. Upstream: upstream/vllm/platforms/cuda.py:79 — `_get_backend_priorities`."""
MLA_PRIORITIES = ("mla",)
"""For latents in the cache: these first."""


@dataclass(frozen=True)
class Selection:
    """A choice and its reasons; `str()` tells it in words.

    Attributes:
        name: of the backend chosen; None where there is none.
        reasons: candidate -> why it cannot be used, in the order in which they were looked at; empty: it can be.
        override: the backend that was asked for by name, if any.
    """

    cfg: AttentionSelectorConfig
    name: str | None
    reasons: dict[str, list[str]] = field(default_factory=dict)
    override: str | None = None

    @property
    def valid(self) -> list[str]:
        """Candidates that could be used, best first."""
        return [name for name, reasons in self.reasons.items() if not reasons]

    @property
    def excluded_by_block_size(self) -> list[str]:
        """Better candidates that only the block size asked for rules out; upstream warns of them."""
        before = list(self.reasons)[: list(self.reasons).index(self.name)] if self.name in self.reasons else []
        return [name for name in before if self.reasons[name] == ["block_size not supported"]]

    def __str__(self) -> str:
        lines = [self.headline()]
        for name, reasons in self.reasons.items():
            verdict = ", ".join(reasons) if reasons else "chosen" if name == self.name else "valid, lower priority"
            lines.append(f"  {name:14} {verdict}")
        if self.excluded_by_block_size:
            names = ", ".join(self.excluded_by_block_size)
            lines.append(f"  block_size={self.cfg.block_size} precluded higher-priority backend(s) {names}")
        return "\n".join(lines)

    def headline(self) -> str:
        """The first line: the choice alone."""
        if self.name is None and self.override is not None:
            return self.refusal()
        if self.name is None:
            return f"No valid attention backend found with {self.cfg}."
        if self.override is not None:
            return f"Using {self.name} backend, as asked for."
        return f"Using {self.name} attention backend out of potential backends: {self.valid}."

    def refusal(self) -> str:
        """Upstream's sentence for a choice that cannot be."""
        if self.override is not None:
            reasons = self.reasons[self.override]
            return f"Selected backend {self.override} is not valid for this configuration. Reason: {reasons}"
        reasons_of_all = ", ".join(f"{name}: [{', '.join(reasons)}]" for name, reasons in self.reasons.items())
        return f"No valid attention backend found with {self.cfg}. Reasons: {{{reasons_of_all}}}."


def explain(cfg: AttentionSelectorConfig, override: str | None = None) -> Selection:
    """Look at every candidate: with an override at that one alone, otherwise at all in order of priority.

    Raises:
        ValueError: no backend has the name in `override`.
    """
    in_order = (*MLA_PRIORITIES, *PRIORITIES) if cfg.use_mla else PRIORITIES
    candidates = in_order if override is None else (override,)
    reasons = {name: _validate(get_attention_backend(name), cfg) for name in candidates}
    valid = [name for name, why_not in reasons.items() if not why_not]
    return Selection(cfg, valid[0] if valid else None, reasons, override)


def get_attn_backend(cfg: AttentionSelectorConfig, override: Any = None) -> Any:
    """The backend class for this configuration; a class as `override` is handed back unchecked (a learner's, say).

    Raises:
        ValueError: the backend asked for, or every backend, lacks something; the message says what.

    Upstream: upstream/vllm/v1/attention/selector.py:52 — `get_attn_backend`, and
    upstream/vllm/platforms/cuda.py:293 — `CudaPlatformBase.get_attn_backend_cls`.
    """
    if callable(override):
        return override
    selection = explain(cfg, override)
    if selection.name is None:
        raise ValueError(selection.refusal())
    return get_attention_backend(selection.name)


def make_attention(
    model: Any,
    kv_cache: KVCache,
    override: Any = None,
    kv_cache_dtype: str | None = None,
    enforce_eager: bool = False,
    layers: Sequence[int] | None = None,
) -> Any:
    """The backend for a model and its cache, chosen and built. Eager, and with floats in the cache: the plain one; with
    VLLM_BATCH_INVARIANT=1 the one that promises it.

    `layers`: those that it serves; None: the whole model.

    Upstream: upstream/vllm/model_executor/layers/attention/attention.py:189 — `Attention.__init__`.
    """
    invariant = vllm_is_batch_invariant()
    if override is None and invariant:
        override = "per_token"
    use_mla, sinks = getattr(model, "use_mla", False), getattr(model, "sinks", None)
    if override is None and enforce_eager and kv_cache_dtype in (None, "auto") and not use_mla:
        override = "dense"
    cfg = AttentionSelectorConfig(
        kv_cache.head_dim, str(kv_cache.dtype), kv_cache_dtype, kv_cache.block_size,
        use_mla=use_mla, has_sink=sinks is not None, use_batch_invariant=invariant,
    )  # fmt: skip
    served = range(len(model.sliding_windows)) if layers is None else layers
    windows = [model.sliding_windows[layer] for layer in served]
    args = (None if sinks is None else np.stack([sinks[layer] for layer in served]),
            getattr(model, "attn_scale", None), getattr(model, "logits_soft_cap", None))  # fmt: skip
    is_plain = all(arg is None for arg in args)
    return get_attn_backend(cfg, override)(kv_cache, model.num_heads, windows, *(() if is_plain else args))


def _validate(backend: Any, cfg: AttentionSelectorConfig) -> list[str]:
    """A registered backend that says nothing about itself is taken at its word."""
    validate = getattr(backend, "validate_configuration", None)
    return validate(cfg) if validate else []
