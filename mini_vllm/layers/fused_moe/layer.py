"""The experts of a layer and their router's rule. Upstream twin: `vllm/model_executor/layers/fused_moe/layer.py`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from mini_vllm.layers.fused_moe.fused_moe import Launches, fused_experts
from mini_vllm.layers.fused_moe.routing import fused_topk
from mini_vllm.utils.arrays import Array


class FusedMoE:
    """The experts of one layer with their router's rule; the gate's product is the model's.

    Args:
        num_experts, top_k: experts in all, and for each token.
        hidden, inter: sizes of a row and of an expert's inner layer.
        renormalize: see `fused_topk`.
        scoring_func: "softmax" or "sigmoid".
        launches: counts what a GPU would launch.

    Attributes:
        w13: [num_experts, 2 * inter, hidden], gate over up; w2: [num_experts, hidden, inter]. Zeros until filled.
        expert_map: None, or where each expert stands in w13 and w2 of this rank: see `keep_local_experts`.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/layer.py:73 — `FusedMoE`.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden: int,
        inter: int,
        renormalize: bool = True,
        *,
        scoring_func: str = "softmax",
        dtype: Any = np.float32,
        launches: Launches | None = None,
    ) -> None:
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k must be in 1..{num_experts} (num_experts), got {top_k}")
        self.num_experts, self.top_k, self.renormalize = num_experts, top_k, renormalize
        self.scoring_func, self.launches = scoring_func, launches
        self.w13: Any = np.zeros((num_experts, 2 * inter, hidden), dtype)
        self.w2: Any = np.zeros((num_experts, hidden, inter), dtype)
        self.expert_map: Array | None = None

    def select_experts(self, router_logits: Array) -> tuple[Array, Array]:
        """Weights and ids [tokens, top_k] for logits [tokens, num_experts].

        Upstream: upstream/vllm/model_executor/layers/fused_moe/router/base_router.py:250 — `BaseRouter.select_experts`.
        """
        return fused_topk(router_logits, self.top_k, self.renormalize, self.scoring_func)

    def forward(self, hidden_states: Array, router_logits: Array) -> Array:
        """[tokens, hidden] and [tokens, num_experts] -> [tokens, hidden].

        Upstream: upstream/vllm/model_executor/layers/fused_moe/layer.py:1306 — `FusedMoE.forward`.
        """
        return self.apply(hidden_states, *self.select_experts(router_logits))

    def apply(self, hidden_states: Array, topk_weights: Array, topk_ids: Array) -> Array:
        """The experts' part of `forward`: [tokens, hidden]; with an `expert_map`, this rank's partial sums."""
        return fused_experts(
            hidden_states, self.w13, self.w2, topk_weights, topk_ids, expert_map=self.expert_map, launches=self.launches
        )

    def keep_local_experts(self, expert_map: Array) -> FusedMoE:
        """The same layer with the weights of one rank's experts, copied.

        Args:
            expert_map: [num_experts], see `determine_expert_map`.
        """
        part = copy.copy(self)
        held = np.flatnonzero(expert_map >= 0)
        part.w13, part.w2, part.expert_map = self.w13[held], self.w2[held], expert_map
        return part
