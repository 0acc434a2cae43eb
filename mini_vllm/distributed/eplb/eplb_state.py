"""Expert-parallel load balancing: hot experts get replicas, and replicas are packed evenly onto ranks.

A logical expert is the model's; a physical one is a copy of it in a slot of a rank. All arrays have a row per layer.
Who holds what is decided by `policy/default.py`.
Upstream twins: `vllm/distributed/eplb/eplb_state.py`, and the routing kernel in `base_router.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.distributed.eplb.policy.default import rebalance_experts
from mini_vllm.layers.fused_moe.expert_load import balancedness
from mini_vllm.utils.arrays import Array

KNUTH_MULTIPLIER = 2654435769
"""2^32 over the golden ratio. Upstream: upstream/vllm/model_executor/layers/fused_moe/router/base_router.py:49 —
"KNUTH_MULTIPLIER"."""


def initial_phy2log(num_logical: int, num_redundant: int, num_layers: int = 1) -> Array:
    """The arrangement before anything was measured: all experts, then the first ones again. [layers, physical].

    Upstream: upstream/vllm/distributed/eplb/eplb_state.py:287 —
    `EplbState.build_initial_global_physical_to_logical_map`.
    """
    row = np.concatenate([np.arange(num_logical), np.arange(num_redundant) % num_logical])
    return np.tile(row, (num_layers, 1))


def compute_logical_maps(phy2log: Array, num_logical: int) -> tuple[Array, Array]:
    """The other direction: replicas of every logical expert.

    Returns:
        log2phy [layers, logical, most replicas], filled up with -1; count [layers, logical].

    Upstream: upstream/vllm/distributed/eplb/eplb_state.py:992 — `compute_logical_maps`.
    """
    count = np.stack([np.bincount(row, minlength=num_logical) for row in phy2log])
    log2phy = np.full((len(phy2log), num_logical, int(count.max(initial=1))), -1, np.int64)
    for layer, row in enumerate(phy2log):
        order = np.argsort(row, kind="stable")
        replica = np.arange(len(row)) - np.repeat(np.cumsum(count[layer]) - count[layer], count[layer])
        log2phy[layer, row[order], replica] = order
    return log2phy, count


def map_to_physical(topk_ids: Array, log2phy: Array, count: Array) -> Array:
    """Logical -> physical ids for one layer: the token's number, hashed, picks one of the expert's replicas.

    Args:
        topk_ids: [tokens, top_k]; log2phy: [logical, replicas]; count: [logical].

    Upstream: upstream/vllm/model_executor/layers/fused_moe/router/base_router.py:18 —
    `_eplb_map_and_record_i32_kernel`.
    """
    hashed = (np.arange(len(topk_ids), dtype=np.uint64) * KNUTH_MULTIPLIER) & np.uint64(0xFFFFFFFF)
    replica = (hashed.astype(np.int64)[:, None]) % count[topk_ids]
    return log2phy[topk_ids, replica]


class EplbState:
    """Measures a window of steps, and rearranges when its interval is over.

    Args:
        num_layers, num_logical, num_ranks: of the model and the group.
        num_redundant: slots beyond the experts themselves.
        window_size, step_interval: steps that count, and steps between two rearrangements.
        num_groups, num_nodes: see `rebalance_experts`.

    Attributes:
        phy2log [layers, physical], log2phy, replica_count: the arrangement in force.
        num_rearrangements: how often it was made anew.

    Upstream: upstream/vllm/distributed/eplb/eplb_state.py:210 — `EplbState`; it also moves the weights.
    """

    def __init__(
        self,
        num_layers: int,
        num_logical: int,
        num_ranks: int,
        num_redundant: int = 0,
        *,
        window_size: int = 1000,
        step_interval: int = 3000,
        num_groups: int = 1,
        num_nodes: int = 1,
    ) -> None:
        num_physical = num_logical + num_redundant
        if num_physical % num_ranks:
            raise ValueError(f"num_ranks={num_ranks} must divide the physical experts, {num_physical}")
        self.num_logical, self.num_ranks, self.num_groups, self.num_nodes = (
            num_logical,
            num_ranks,
            num_groups,
            num_nodes,
        )
        self.window_size, self.step_interval = window_size, step_interval
        self.step_count = self.num_rearrangements = 0
        self._pass = np.zeros((num_layers, num_physical), np.int64)
        self._window = np.zeros((window_size, num_layers, num_physical), np.int64)
        self._window_step = 0
        self._adopt(initial_phy2log(num_logical, num_redundant, num_layers))

    def _adopt(self, phy2log: Array) -> None:
        self.phy2log = phy2log
        self.log2phy, self.replica_count = compute_logical_maps(phy2log, self.num_logical)

    def route(self, layer: int, topk_ids: Array) -> Array:
        """Physical ids for a batch's logical ones; the loads are counted for this step."""
        physical = map_to_physical(topk_ids, self.log2phy[layer], self.replica_count[layer])
        self._pass[layer] += np.bincount(physical.reshape(-1), minlength=self._pass.shape[1])
        return physical

    def rank_loads(self) -> Array:
        """[layers, ranks]: assignments of this step so far."""
        return self._pass.reshape(len(self._pass), self.num_ranks, -1).sum(axis=-1)

    def step(self) -> float:
        """End a step: its loads enter the window if a rearrangement is near. Returns the step's `balancedness`.

        Upstream: upstream/vllm/distributed/eplb/eplb_state.py:473 — `EplbState.step`.
        """
        balance = balancedness(self.rank_loads())
        if self.step_interval - self.step_count <= self.window_size:
            self._window[self._window_step] = self._pass
            self._window_step = (self._window_step + 1) % self.window_size
        self._pass[:] = 0
        self.step_count += 1
        if self.step_count >= self.step_interval:
            self.step_count = 0
            self.rearrange()
        return balance

    def rearrange(self) -> None:
        """A new arrangement for the loads of the window, counted by logical expert.

        Upstream: upstream/vllm/distributed/eplb/eplb_state.py:657 — `EplbState.rearrange`.
        """
        loads = np.zeros((len(self._pass), self.num_logical), np.int64)
        np.add.at(loads, (np.arange(len(loads))[:, None], self.phy2log), self._window.sum(axis=0))
        args = (self._pass.shape[1], self.num_groups, self.num_nodes, self.num_ranks, self.phy2log)
        self._adopt(rebalance_experts(loads, *args))
        self.num_rearrangements += 1
