"""How unevenly experts are loaded, and what that costs when they lie on different devices."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array


def expert_loads(topk_ids: Array, num_experts: int) -> Array:
    """Assignments of every expert, [num_experts] int64; a token with k experts counts k times."""
    return np.bincount(np.asarray(topk_ids).reshape(-1), minlength=num_experts)


def imbalance(loads: Array) -> float:
    """Largest load over the mean: 1.0 is even. 0.0 where nothing was routed."""
    total = float(np.sum(loads))
    return float(np.max(loads)) * len(loads) / total if total else 0.0


def device_loads(loads: Array, rank_of: Array, num_devices: int) -> Array:
    """Load of every device, [num_devices], where expert e lies on device `rank_of[e]`."""
    return np.bincount(rank_of, weights=loads, minlength=num_devices)


def balancedness(loads_of_rank: Array) -> float:
    """Sum over layers of the mean load over the sum of the largest: the share of the devices' time that is work.

    Args:
        loads_of_rank: [layers, ranks].

    Upstream: upstream/vllm/distributed/eplb/eplb_state.py:541 — "balancedness = avg_tokens / max_tokens".
    """
    largest = float(loads_of_rank.max(axis=-1).sum())
    return float(loads_of_rank.mean(axis=-1).sum()) / largest if largest else 0.0


def padded_rows(loads: Array, block_size: int) -> int:
    """Rows of the grouped GEMM once every expert's share is rounded up to whole blocks."""
    return int((-(-np.asarray(loads) // block_size) * block_size).sum())


class ExpertLoad:
    """Assignments counted while a model serves, for each MoE layer and expert.

    The counts are under a lock, since the threads that share a step count too.

    Attributes:
        counts: [moe_layers, num_experts] int64, since the start or the last `reset`.
        num_tokens: tokens of the step under way that count, the rest pads it for a CUDA graph; None: all.

    Upstream: upstream/vllm/distributed/eplb/eplb_state.py:150 — "expert_load_pass", of one forward pass.
    """

    @staticmethod
    def concatenate(loads: list[ExpertLoad]) -> ExpertLoad | None:
        """Those of all stages of a pipeline as one, in the order of the layers; None where there are none."""
        if not loads:
            return None
        whole = ExpertLoad(0, loads[0].counts.shape[1])
        whole.counts = np.concatenate([load.counts for load in loads])
        return whole

    def __init__(self, num_layers: int, num_experts: int) -> None:
        self.counts = np.zeros((num_layers, num_experts), np.int64)
        self.num_tokens: int | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {"counts": self.counts.copy(), "num_tokens": self.num_tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.counts, self.num_tokens, self._lock = state["counts"], state["num_tokens"], threading.Lock()

    def record(self, layer: int, topk_ids: Array, first_token: int = 0) -> None:
        """Count some tokens of the step, from `first_token` on: ids [tokens, top_k] of the n-th MoE layer."""
        if self.num_tokens is not None:
            topk_ids = topk_ids[: max(0, self.num_tokens - first_token)]
        counted = expert_loads(topk_ids, self.counts.shape[1])
        with self._lock:
            self.counts[layer] += counted

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self.counts[:] = 0

    def imbalance(self) -> list[float]:
        """Largest over mean load, layer by layer."""
        return [imbalance(row) for row in self.counts]

    def __repr__(self) -> str:
        layers, experts = self.counts.shape
        worst = max(self.imbalance(), default=0.0)
        return f"ExpertLoad({layers} layers, {experts} experts, {self.counts.sum()} assignments, worst {worst:.2f}x)"
