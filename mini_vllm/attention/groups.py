"""Attention of a model whose layers are in more than one KV cache group: to every layer its group's block tables.

Layer i of a group lives in memory i, whichever group it is: the groups use different blocks of the same memory. Groups
of layers that keep a state have arrays of their own, of their own shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mini_vllm.attention.backend import AttentionMetadata, AttentionStep
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.quantized_kv_cache import make_kv_cache
from mini_vllm.attention.selector import make_attention
from mini_vllm.core.kv_cache_groups import layer_name, num_shared_layers
from mini_vllm.kv_cache_interface import KVCacheGroupSpec
from mini_vllm.utils.arrays import Array


@dataclass(slots=True)
class GroupedAttentionMetadata(AttentionMetadata):
    """That of the first group, and `others`, those of the groups after it."""

    others: tuple[AttentionMetadata, ...] = ()


class GroupedAttention:
    """A backend for each group, and the table that says which layer asks which.

    Args:
        groups: of the model; a stage of a pipeline may have no layer of one.
        num_layers: of the model.
        make_backend: makes a backend from the numbers of its layers. num_blocks: of the pool.
    """

    def __init__(
        self,
        groups: Sequence[KVCacheGroupSpec],
        num_layers: int,
        make_backend: Callable[[list[int]], Any],
        num_blocks: int = 0,
    ) -> None:
        by_name = {layer_name(layer): layer for layer in range(num_layers)}
        layers = [[by_name[name] for name in group.layer_names] for group in groups]
        self.place = {layer: (g, i) for g, of_group in enumerate(layers) for i, layer in enumerate(of_group)}
        self.has_states = any(group.keeps_state for group in groups)
        self.drafted = drafted = make_drafted_states(groups)

        def backend_of(group: KVCacheGroupSpec, of_group: list[int]) -> Any:
            if not of_group:
                return None
            return make_states(group, num_blocks, drafted) if group.keeps_state else make_backend(of_group)

        self.backends = [backend_of(group, of_group) for group, of_group in zip(groups, layers, strict=True)]

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """The callable for this step."""
        of_groups = (metadata, *metadata.others) if isinstance(metadata, GroupedAttentionMetadata) else (metadata,)
        pairs = zip(self.backends, of_groups, strict=True)
        steps = [None if backend is None else backend.begin_step(of) for backend, of in pairs]

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            group, index = self.place[layer]
            return steps[group](index, q, k, v)  # type: ignore[misc]

        return StatefulStep(attn, self.place, steps) if self.has_states else attn


class StatefulStep:
    """The attention of a step, where some layers keep a state: those ask for it by their number."""

    def __init__(self, attn: AttentionStep, place: dict[int, tuple[int, int]], steps: list[Any]) -> None:
        self._attn, self._place, self._steps = attn, place, steps

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """As any attention."""
        return self._attn(layer, q, k, v)

    def state(self, layer: int) -> Any:
        """The layer's `LayerState` (`attention/backends/mamba_attn.py`)."""
        group, index = self._place[layer]
        return self._steps[group][index]


def make_states(group: KVCacheGroupSpec, num_blocks: int, drafted: Any) -> Any:
    """The states of a group's layers, in the place of a backend."""
    from mini_vllm.attention.backends.mamba_attn import MambaAttentionBackend

    spec: Any = group.kv_cache_spec
    return MambaAttentionBackend(spec, len(group.layer_names), num_blocks, drafted)


def make_drafted_states(groups: Sequence[KVCacheGroupSpec]) -> Any:
    """A `DraftedStates` where the groups have blocks for drafts."""
    sizes = [g.kv_cache_spec.block_size for g in groups if getattr(g.kv_cache_spec, "num_speculative_blocks", 0)]
    if not sizes:
        return None
    from mini_vllm.attention.backends.mamba_attn import DraftedStates

    return DraftedStates(sizes[0])


def make_grouped_attention(
    groups: Sequence[KVCacheGroupSpec], model: Any, num_blocks: int, block_size: int, dtype: Any, kv_cache_dtype: str,
    override: Any = None, enforce_eager: bool = False,
) -> tuple[KVCache | None, Any]:  # fmt: skip
    """The arrays for keys and values, None in a model that has none, and the attention of a model: one backend for a
    model of one group (or of none), else one for each group."""
    kv_cache: Any = None
    if num_layers := num_shared_layers(groups) if groups else model.num_layers:
        shape = (num_layers, num_blocks, block_size, model.num_kv_heads, model.head_dim)
        kv_cache = make_kv_cache(*shape, dtype, kv_cache_dtype, getattr(model, "use_mla", False))
    make = partial(make_attention, model, kv_cache, override, kv_cache_dtype, enforce_eager)
    if len(groups) < 2 and not any(group.keeps_state for group in groups):
        return kv_cache, make()
    return kv_cache, GroupedAttention(groups, model.num_layers, make, num_blocks)
