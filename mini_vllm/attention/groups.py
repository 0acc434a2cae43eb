"""Attention of a model whose layers are in more than one KV cache group: to every layer its group's block tables.

Layer i of a group lives in memory i, whichever group it is: the groups use different blocks of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mini_vllm.attention.backend import AttentionMetadata, AttentionStep
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.selector import make_attention
from mini_vllm.core.kv_cache_groups import layer_name
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
        make_backend: makes a backend from the numbers of its layers.
    """

    def __init__(
        self,
        groups: Sequence[KVCacheGroupSpec],
        num_layers: int,
        make_backend: Callable[[list[int]], Any],
    ) -> None:
        by_name = {layer_name(layer): layer for layer in range(num_layers)}
        layers = [[by_name[name] for name in group.layer_names] for group in groups]
        self.place = {layer: (g, i) for g, of_group in enumerate(layers) for i, layer in enumerate(of_group)}
        self.backends = [make_backend(of_group) if of_group else None for of_group in layers]

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """The callable for this step."""
        assert isinstance(metadata, GroupedAttentionMetadata)
        of_groups = (metadata, *metadata.others)
        pairs = zip(self.backends, of_groups, strict=True)
        steps = [None if backend is None else backend.begin_step(of) for backend, of in pairs]

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            group, index = self.place[layer]
            return steps[group](index, q, k, v)  # type: ignore[misc]

        return attn


def make_grouped_attention(
    groups: Sequence[KVCacheGroupSpec], model: Any, kv_cache: KVCache, override: Any, kv_cache_dtype: str,
    enforce_eager: bool = False,
) -> Any:  # fmt: skip
    """The attention of a model: one backend for a model of one group (or of none), else one for each group."""
    make = partial(make_attention, model, kv_cache, override, kv_cache_dtype, enforce_eager)
    return make() if len(groups) < 2 else GroupedAttention(groups, model.num_layers, make)
