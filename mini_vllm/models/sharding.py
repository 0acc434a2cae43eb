"""A model cut up for tensor parallelism: each rank takes some heads, some of the MLP, some of the vocabulary.

    qkv, gate_up: rows  (a rank's heads, its share of the MLP)  -> no exchange needed before the next product
    o, down:      columns (what reads those)                    -> partial sums, added up over the ranks

Upstream twins: upstream/vllm/model_executor/layers/linear.py:410 — `ColumnParallelLinear` and
upstream/vllm/model_executor/layers/linear.py:1392 — `RowParallelLinear`. There each rank loads its part; here the whole
model is in memory first, and its parts are copied layer by layer, as a product with a slice of columns is slower. A
layer that nobody else needs is given back at once, so that the parts take the memory of one model.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.models.llama import LlamaForCausalLM, LlamaLayer


ON_EVERY_RANK = ("input_norm", "post_norm", "q_norm", "k_norm", "o_bias", "down_bias")


def shard_llama(model: LlamaForCausalLM, group: TensorParallelGroup) -> list[LlamaForCausalLM]:
    """The part that each rank computes, a model of its own. The embedding is the whole model's.

    A model that is its engine's own has no layers afterwards.

    Raises:
        ValueError: the heads, the MLP or the vocabulary cannot be shared evenly, or the weights are quantized.
    """
    world = group.world_size
    for name in ("num_heads", "num_kv_heads", "inter_size", "vocab_size"):
        if getattr(model, name) % world:
            raise ValueError(
                f"tensor_parallel_size must divide {name} of the model, {getattr(model, name)}, got {world}"
            )
    if model.quant_config is not None:
        raise ValueError(f"tensor_parallel_size must be 1 with quantized weights, got {world}")
    parts = [_part_without_layers(model, rank, group) for rank in range(world)]
    layers = model.layers[::-1]
    if model.is_engines_own:
        model.remember_sizes()
        model.layers = []
    while layers:  # a layer is given back before the next one is cut
        layer = layers.pop()
        for part in parts:
            part.layers.append(_shard_layer(model, part, layer, world))
    return parts


def _part_without_layers(model: LlamaForCausalLM, rank: int, group: TensorParallelGroup) -> LlamaForCausalLM:
    world = group.world_size
    part = copy.copy(model)
    part.rank, part.group = rank, group
    part.num_heads, part.num_kv_heads = model.num_heads // world, model.num_kv_heads // world
    part.q_size, part.kv_size = model.q_size // world, model.kv_size // world
    part.inter_size = model.inter_size // world
    part._slab = np.empty(0, model.dtype)
    part.layers = []
    part.vocab = share(model.vocab_size, rank, world)
    part.lm_head = model.lm_head[part.vocab]
    part.new_scratch()
    return part


def _shard_layer(model: LlamaForCausalLM, part: LlamaForCausalLM, layer: LlamaLayer, world: int) -> LlamaLayer:
    rank = part.rank
    qkv = shard_rows([model.q_size, model.kv_size, model.kv_size], rank, world)

    def take(weight: Array) -> Array:
        array = part._new(*weight.shape)
        np.copyto(array, weight)
        return array

    attention: dict[str, Any] = {
        # Copied too: a view of a small array would keep the slab alive from which the whole layer was cut.
        **{name: take(getattr(layer, name)) for name in ON_EVERY_RANK if getattr(layer, name) is not None},
        "qkv": take(layer.qkv[qkv]),
        "o": take(layer.o[:, share(model.q_size, rank, world)]),
        "qkv_bias": None if layer.qkv_bias is None else layer.qkv_bias[qkv],
    }
    if layer.moe is not None:
        return replace(layer, **attention, moe=layer.moe.shard(rank, world))
    gate_up = shard_rows([model.inter_size, model.inter_size], rank, world)
    return replace(
        layer,
        **attention,
        gate_up=take(layer.gate_up[gate_up]),
        down=take(layer.down[:, share(model.inter_size, rank, world)]),
        gate_up_bias=None if layer.gate_up_bias is None else layer.gate_up_bias[gate_up],
    )


def share(size: int, rank: int, world_size: int) -> slice:
    """The rank's share of `size` rows or columns."""
    return slice(rank * size // world_size, (rank + 1) * size // world_size)


def shard_rows(sizes: list[int], rank: int, world_size: int) -> Array:
    """Rows of a stack of matrices, `sizes` rows each, that a rank takes: its share of every one, in order."""
    starts = np.cumsum([0, *sizes[:-1]])
    return np.concatenate(
        [
            np.arange(start, start + size)[share(size, rank, world_size)]
            for start, size in zip(starts, sizes, strict=True)
        ]
    )
