"""How the layers of a model become KV cache groups, and how much memory a block of all of them takes.

    specs of all layers -> groups (one block table each) -> KVCacheConfig (one pool of blocks for all groups)

Blocks of all groups come from one pool, so they must be of one size. That is why every group gets the same number of
layers: of 2 full and 10 sliding layers, one group of 2 full ones and five of 2 sliding ones. A block id then means one
block in each of 2 pools of memory, whichever group it is given to.

Upstream twin: `vllm/v1/core/kv_cache_utils.py`, second half.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mini_vllm.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    SlidingWindowSpec,
    SpecMismatchError,
)
from mini_vllm.utils.math_utils import cdiv

DRAFT_PREFIX = "draft_model."
"""Before the names of a drafter's layers. They have the target's block tables, and memory of their own."""
Specs = Mapping[str, KVCacheSpec]
"""Layer name -> what the layer keeps."""


def get_kv_cache_spec(
    model: Any, block_size: int, kv_cache_dtype: str = "auto", config: Any = None, lengths: Sequence[Any] = ()
) -> dict[str, KVCacheSpec]:
    """The spec of every layer of a model, by name; a model without layers has none.

    config, lengths: the engine's settings and the model's `ResolvedModel.lengths`, for layers that keep a state.

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:7291 — `GPUModelRunner.get_kv_cache_spec`.
    """
    common: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": model.num_kv_heads,
        "head_size": model.head_dim,
        "dtype": str(model.dtype),
        "kv_cache_dtype": kv_cache_dtype,
    }
    full = MLAAttentionSpec if getattr(model, "use_mla", False) else FullAttentionSpec
    specs: dict[str, KVCacheSpec] = {
        layer_name(layer): full(**common)
        if model.sliding_windows[layer] is None
        else SlidingWindowSpec(**common, sliding_window=model.sliding_windows[layer])
        for layer in range(model.num_layers)
    }
    if getattr(model, "state_layers", None):
        from mini_vllm.layers.mamba.abstract import get_state_specs

        specs |= get_state_specs(model, config, config.resolve_max_model_len(*lengths), specs)
    return specs


def layer_name(layer: int) -> str:
    """The name under which layer number `layer` stands in a group."""
    return f"model.layers.{layer}.self_attn.attn"


def get_kv_cache_groups(kv_cache_spec: Specs, disable_hybrid_kv_cache_manager: bool = False) -> list[KVCacheGroupSpec]:
    """Split the layers into groups that share a block table. One type of layer is one group.

    Args:
        kv_cache_spec: of all layers.
        disable_hybrid_kv_cache_manager: make one group of a model with full and sliding layers, by keeping all
            blocks of all layers.

    Raises:
        ValueError: the layers cannot share a pool; the message says why.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1618 — `get_kv_cache_groups`.
    """
    if disable_hybrid_kv_cache_manager:
        kv_cache_spec = unify_hybrid_kv_cache_specs(kv_cache_spec)
    if not kv_cache_spec:
        return []
    if is_kv_cache_spec_uniform(kv_cache_spec):
        return create_kv_cache_group_specs(kv_cache_spec, [list(kv_cache_spec)])
    return _get_kv_cache_groups_uniform_page_size(unify_kv_cache_spec_page_size(kv_cache_spec))


def is_kv_cache_spec_uniform(kv_cache_spec: Specs) -> bool:
    """True where all layers can share one block table.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:852 — `is_kv_cache_spec_uniform`.
    """
    specs = list(kv_cache_spec.values())
    if not specs:
        return True
    try:
        specs[0].merge(specs)
    except SpecMismatchError:
        return False
    return True


def create_kv_cache_group_specs(kv_cache_spec: Specs, grouped_layers: list[list[str]]) -> list[KVCacheGroupSpec]:
    """One `KVCacheGroupSpec` for each list of layer names.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:822 — `create_kv_cache_group_specs`.
    """
    groups = []
    for names in grouped_layers:
        specs = [kv_cache_spec[name] for name in names]
        groups.append(KVCacheGroupSpec(names, specs[0].merge(specs)))
    return groups


def unify_kv_cache_spec_page_size(kv_cache_spec: Specs) -> Specs:
    """Give layers with small pages longer blocks, until all pages are equally large.

    Raises:
        ValueError: one page size is no multiple of another.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1012 — `unify_kv_cache_spec_page_size`.
    """
    largest = max(spec.page_size_bytes for spec in kv_cache_spec.values())
    unified = {}
    for name, spec in kv_cache_spec.items():
        ratio, rest = divmod(largest, spec.page_size_bytes)
        if rest:
            raise ValueError(
                f"layer {name!r} has pages of {spec.page_size_bytes} bytes, which do not divide the largest page of "
                f"{largest}: its blocks cannot share a pool with the others"
            )
        unified[name] = spec if ratio == 1 else replace(spec, block_size=spec.block_size * ratio)
    return unified


def _get_kv_cache_groups_uniform_page_size(kv_cache_spec: Specs) -> list[KVCacheGroupSpec]:
    """Groups of equal numbers of layers, each of one type; the last group of a type may lack some.

    Layers are dealt out in turn (`layers[i::n]`), so that a stage of a pipeline has its share of every group.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1057 — `_get_kv_cache_groups_uniform_page_size`.
    """
    same_type_layers: dict[KVCacheSpec, list[str]] = {}
    for name, spec in kv_cache_spec.items():
        same_type_layers.setdefault(spec, []).append(name)
    counts = [len(layers) for layers in same_type_layers.values()]
    # Little is wasted by filling up to the largest type where the types are about equally frequent.
    group_size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    grouped_layers = []
    for layers in same_type_layers.values():
        num_groups = cdiv(len(layers), group_size)
        grouped_layers += [layers[i::num_groups] for i in range(num_groups)]
    return create_kv_cache_group_specs(kv_cache_spec, grouped_layers)


def unify_hybrid_kv_cache_specs(kv_cache_spec: Specs) -> Specs:
    """Manage sliding layers as full ones where a model has both.

    Raises:
        ValueError: the layers are still of more than one type.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1324 — `unify_hybrid_kv_cache_specs`.
    """
    if is_kv_cache_spec_uniform(kv_cache_spec):
        return kv_cache_spec
    unified = dict(kv_cache_spec)
    if any(isinstance(spec, FullAttentionSpec) for spec in unified.values()):
        for name, spec in unified.items():
            if isinstance(spec, SlidingWindowSpec):
                unified[name] = FullAttentionSpec(**vars(spec))
    if not is_kv_cache_spec_uniform(unified):
        raise ValueError("disable_hybrid_kv_cache_manager: the layers of this model cannot be managed as one type")
    return unified


def bytes_per_block(kv_cache_groups: list[KVCacheGroupSpec]) -> int:
    """Bytes that one more block of the pool costs, in all pools of memory together.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:908 — `_pool_bytes_per_block`.
    """
    return sum(tensor.size for tensor in get_kv_cache_config_from_groups(kv_cache_groups, 1).kv_cache_tensors)


def max_blocks_per_request(
    kv_cache_groups: list[KVCacheGroupSpec], max_num_batched_tokens: int, max_model_len: int
) -> int:
    """Blocks that a request of `max_model_len` tokens holds at most, over all groups.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1741 — `_max_memory_usage_bytes_from_groups`.
    """
    return sum(
        group.kv_cache_spec.max_blocks_per_request(max_num_batched_tokens, max_model_len) for group in kv_cache_groups
    )


def get_kv_cache_config_from_groups(kv_cache_groups: list[KVCacheGroupSpec], num_blocks: int) -> KVCacheConfig:
    """Groups over a pool of so many blocks, and which layers share which memory: the i-th of every group. Layers that
    keep a state have arrays of their own.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1236 — `get_kv_cache_config_from_groups`, which starts from bytes,
    and where states share memory with keys and values.
    """
    tensors, sharing = [], [group for group in kv_cache_groups if not group.keeps_state]
    for i in range(num_shared_layers(kv_cache_groups)):
        shared_by = [group.layer_names[i] for group in sharing if i < len(group.layer_names)]
        tensors.append(KVCacheTensor(sharing[0].kv_cache_spec.page_size_bytes * num_blocks, shared_by))
    for group in [group for group in kv_cache_groups if group.keeps_state]:
        size = group.kv_cache_spec.state_bytes * num_blocks  # type: ignore[attr-defined]
        tensors += [KVCacheTensor(size, [name]) for name in group.layer_names]
    return KVCacheConfig(num_blocks, tensors, kv_cache_groups)


def resolve_kv_cache_block_sizes(kv_cache_groups: list[KVCacheGroupSpec]) -> tuple[int, int]:
    """(tokens to which hits of all groups are aligned, tokens of a block that is hashed).

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:571 — `resolve_kv_cache_block_sizes`.
    """
    sizes = [group.kv_cache_spec.block_size for group in kv_cache_groups]
    return math.lcm(*sizes), math.gcd(*sizes)


def get_kv_cache_config(
    kv_cache_specs: Sequence[Specs], config: Any, max_model_len: int, available_memory: int | None = None
) -> KVCacheConfig:
    """The groups of a model, and as many blocks as the engine's settings (`EngineConfig`) allow.

    Args:
        kv_cache_specs: what each rank's layers keep.
        available_memory: bytes for all ranks together; by default `kv_cache_memory_bytes`.

    Captured graphs know one block table: for them a model with full and sliding layers is managed as one of full
    attention, as upstream does where it has to.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1945 — `get_kv_cache_configs`.
    """
    one_table = bool(config.resolved_cudagraph_mode)
    target = merge_kv_cache_specs(kv_cache_specs)
    of_drafter = [spec for name, spec in kv_cache_specs[0].items() if name.startswith(DRAFT_PREFIX)]
    groups = get_kv_cache_groups(target, config.disable_hybrid_kv_cache_manager or one_table)
    _check_drafter(groups, of_drafter, getattr(config.speculative_config, "method", None))
    if not groups:
        groups = make_kv_cache_config(1, config.block_size).kv_cache_groups
    needed = max_blocks_per_request(groups, config.max_num_batched_tokens, max_model_len) + 1
    size = sum(bytes_per_block(layers_of(groups, specs)) for specs in kv_cache_specs)
    size += sum(s.page_size_bytes for s in of_drafter) * len(kv_cache_specs)
    num_blocks = config.resolve_num_blocks(size, max_model_len, needed, available_memory)
    return get_kv_cache_config_from_groups(groups, num_blocks)


def merge_kv_cache_specs(kv_cache_specs: Sequence[Specs]) -> dict[str, KVCacheSpec]:
    """What the target's layers keep, all stages together, in the order of the layers.

    Raises:
        ValueError: ranks differ about a layer.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1983 — "merged_kv_cache_specs: dict[str, KVCacheSpec] = {}".
    """
    merged: dict[str, KVCacheSpec] = {}
    for name, spec in (pair for specs in kv_cache_specs for pair in specs.items()):
        if not name.startswith(DRAFT_PREFIX) and merged.setdefault(name, spec) != spec:
            raise ValueError(f"the ranks differ about what {name!r} keeps: {merged[name]} and {spec}")
    return merged


def layers_of(groups: list[KVCacheGroupSpec], names: Collection[str]) -> list[KVCacheGroupSpec]:
    """Of each group the layers with these names: those of one rank.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:1903 — `_project_kv_cache_groups_to_worker`.
    """
    return [KVCacheGroupSpec([n for n in g.layer_names if n in names], g.kv_cache_spec) for g in groups]


def _check_drafter(groups: list[KVCacheGroupSpec], of_drafter: Sequence[KVCacheSpec], method: str | None) -> None:
    """A drafter reads all blocks of a request, so that none may have gone to others."""
    specs = [*(group.kv_cache_spec for group in groups), *of_drafter]
    if of_drafter and (len(groups) > 1 or any(not isinstance(spec, FullAttentionSpec) for spec in specs)):
        raise ValueError(
            f"speculative_config: method {method!r} needs full attention in all layers of target and draft model; "
            "'ngram' needs nothing of the sort"
        )


def make_kv_cache_config(num_blocks: int, block_size: int) -> KVCacheConfig:
    """One group of full attention without arrays: for the bookkeeping alone."""
    spec = FullAttentionSpec(block_size, num_kv_heads=1, head_size=1)
    return KVCacheConfig(num_blocks, [], [KVCacheGroupSpec([], spec)])


def num_shared_layers(kv_cache_groups: Sequence[KVCacheGroupSpec]) -> int:
    """Pools of memory for keys and values: layers of the largest group of attention."""
    return max((len(group.layer_names) for group in kv_cache_groups if not group.keeps_state), default=0)
