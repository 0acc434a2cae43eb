"""The experts of a layer and their router's rule. Upstream twin: `vllm/model_executor/layers/fused_moe/layer.py`.

Ranks share each expert as they share an MLP; or, with `enable_expert_parallel`, each holds some experts whole: of the
ranks of one engine, or of all replicas, which then hand each other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
from mini_vllm.layers.fused_moe.expert_parallel import ExpertPlacement, determine_expert_map
from mini_vllm.layers.fused_moe.fused_moe import Launches, fused_experts
from mini_vllm.layers.fused_moe.routing import fused_topk
from mini_vllm.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.parameter import ArrayShard, part_of
from mini_vllm.utils.arrays import Array


class FusedMoE(Module):
    """The experts of one layer with their router's rule; the gate's product is the model's.

    Args:
        num_experts, top_k: experts in all, and for each token.
        hidden, inter: sizes of a row and of an expert's inner layer.
        renormalize: see `fused_topk`.
        scoring_func: "softmax" or "sigmoid".
        launches: counts what a GPU would launch.
        context: of the model. None: a layer by itself, floats of type `dtype`.
        prefix: its name; names: what a checkpoint calls an expert's gate, up and down.

    Attributes:
        w13: [experts here, 2 * inter, hidden], gate over up; w2: [experts here, hidden, inter]; lists of projections
            where the weights are quantized. Of a layer by itself, zeros until filled.
        all2all: hands rows to the experts of other replicas; None: there are none. rank_of [num_experts]: who has each.
        expert_map: None, or [num_experts]: where each expert stands in w13 and w2, -1 for those of other ranks.
        load: counts the assignments, see `count_in`; None: nobody does.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/layer.py:73 — `FusedMoE`.
    """

    def __init__(
        self, num_experts: int, top_k: int, hidden: int, inter: int, renormalize: bool = True, *,
        scoring_func: str = "softmax", dtype: Any = np.float32, launches: Launches | None = None,
        context: ModelContext | None = None, prefix: str = "",
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:  # fmt: skip
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k must be in 1..{num_experts} (num_experts), got {top_k}")
        self.num_experts, self.top_k, self.renormalize = num_experts, top_k, renormalize
        self.scoring_func, self.launches, self.hidden, self.inter = scoring_func, launches, hidden, inter
        by_itself, context = context is None, context or ModelContext(np.dtype(dtype))
        self.context = context
        self.prefix, self.names, self.stacked = prefix, names, False
        self.load: ExpertLoad | None = None
        self.load_index = 0
        (ep, ep_rank), strategy = context.ep.ranks(context), context.ep.expert_placement_strategy
        if ep > num_experts:
            raise ValueError(f"enable_expert_parallel needs an expert for each of {ep} ranks, got {num_experts}")
        count, self.expert_map = determine_expert_map(ep, ep_rank, num_experts, strategy)
        self.all2all = context.ep.all2all if ep > 1 else None
        self.rank_of = ExpertPlacement(ep, num_experts, strategy).rank_of
        self.held = np.arange(num_experts) if self.expert_map is None else np.flatnonzero(self.expert_map >= 0)
        # The experts are weights of this layer: they do not stand in the model's list themselves.
        self.of_expert = replace(context, layers=[], group=None if ep > 1 else context.group)
        self.inter_here = self.of_expert.share(inter, f"the inner layer of an expert of {prefix}")
        self.w13: Any
        self.w2: Any
        if context.quant_config is None:
            size = self.inter_here.stop - self.inter_here.start
            self.w13, self.w2 = context.new(count, 2 * size, hidden), context.new(count, hidden, size)
            if by_itself:
                self.w13[:], self.w2[:] = 0, 0
        else:
            self.w13, self.w2 = map(list, zip(*(self._quantized(expert) for expert in self.held.tolist()), strict=True))
        context.layers.append(self)

    def _quantized(self, expert: int) -> tuple[MergedColumnParallelLinear, RowParallelLinear]:
        name, h, i, ctx = f"{self.prefix}.{expert}", self.hidden, self.inter, self.of_expert
        return (
            MergedColumnParallelLinear(h, [i, i], False, ctx, f"{name}.gate_up_proj"),
            RowParallelLinear(i, h, False, ctx, f"{name}.{self.names[2]}", reduce_results=False),
        )

    def select_experts(self, router_logits: Array) -> tuple[Array, Array]:
        """Weights and ids [tokens, top_k] for logits [tokens, num_experts].

        Upstream: upstream/vllm/model_executor/layers/fused_moe/router/base_router.py:250 — `BaseRouter.select_experts`.
        """
        return fused_topk(router_logits, self.top_k, self.renormalize, self.scoring_func)

    def forward(self, hidden_states: Array, router_logits: Array) -> Array:
        """[tokens, hidden] and [tokens, num_experts] -> [tokens, hidden].

        Upstream: upstream/vllm/model_executor/layers/fused_moe/layer.py:1306 — `FusedMoE.forward`.
        """
        return self.context.all_reduce(self.partial_sums(hidden_states, router_logits))

    def partial_sums(self, hidden_states: Array, router_logits: Array, first_token: int = 0) -> Array:
        """What this rank adds to `forward`: choose, count, compute.

        Args:
            first_token: number in its step of the first token here.
        """
        weights, ids = self.select_experts(router_logits)
        if self.load is not None and self.context.tp_rank == 0:  # all ranks choose alike: one of them counts
            self.load.record(self.load_index, ids, first_token)
        return self.apply(hidden_states, weights, ids)

    def apply(self, hidden_states: Array, topk_weights: Array, topk_ids: Array) -> Array:
        """The experts' part: [tokens, hidden]; where ranks share the experts, this one's partial sums."""
        x, weights, ids = hidden_states, topk_weights, topk_ids
        if self.all2all is not None:
            x, weights, ids = self.all2all.dispatch(x, weights, ids, self.rank_of)
        out = fused_experts(
            x, self.w13, self.w2, weights, ids, expert_map=self.expert_map, launches=self.launches
        )  # fmt: skip
        return out if self.all2all is None else self.all2all.combine(out)

    def count_in(self, load: ExpertLoad, index: int) -> None:
        """Count the assignments of this layer in row `index` of `load`."""
        self.load, self.load_index = load, index

    @property
    def arrays(self) -> list[Array]:
        """The experts' weights, as they are held."""
        if isinstance(self.w13, np.ndarray):
            return [self.w13, self.w2]
        return [array for linear in (*self.w13, *self.w2) for array in linear.arrays]

    @property
    def size(self) -> int:
        """Weights of the experts on this rank."""
        return sum(weight.size for weight in (*self.w13, *self.w2))

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Gate, up and down of each expert; None for those that another rank loads; or two tensors with all experts."""
        if self.stacked:
            yield from self._stacked_weights()
            return
        where = {expert: place for place, expert in enumerate(self.held.tolist())}
        for expert in range(self.num_experts):
            gate, up, down = (f"{self.prefix}.{expert}.{name}.weight" for name in self.names)
            if expert not in where:
                yield from ((name, None) for name in (gate, up, down))
            elif isinstance(self.w13, np.ndarray):
                w13, w2 = self.w13[where[expert]], self.w2[where[expert]]
                half, shape = len(w13) // 2, (self.inter, self.hidden)
                yield gate, part_of(w13[:half], shape, (self.inter_here,))
                yield up, part_of(w13[half:], shape, (self.inter_here,))
                yield down, part_of(w2, shape[::-1], (slice(None), self.inter_here))
            else:
                w13, w2 = self.w13[where[expert]], self.w2[where[expert]]
                targets = [target for linear in (w13, w2) for _, target in linear.weights()]
                yield from zip((gate, up, down), targets, strict=True)

    def _stacked_weights(self) -> Iterator[tuple[str, Any]]:
        e, i, h, held, part = self.num_experts, self.inter, self.hidden, self.held, self.inter_here
        gate_up, down = f"{self.prefix}.gate_up_proj", f"{self.prefix}.down_proj"
        if self.context.group is None and self.expert_map is None:
            yield gate_up, self.w13
            yield down, self.w2
            return
        step = int(held[1] - held[0]) if len(held) > 1 else 1
        experts, half = slice(int(held[0]), int(held[-1]) + 1, step), self.w13.shape[1] // 2
        yield gate_up, ArrayShard(self.w13[:, :half], (e, 2 * i, h), (experts, part))
        yield gate_up, ArrayShard(self.w13[:, half:], (e, 2 * i, h), (experts, slice(i + part.start, i + part.stop)))
        yield down, ArrayShard(self.w2, (e, h, i), (experts, slice(None), part))
