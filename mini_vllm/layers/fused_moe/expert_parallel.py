"""Whole experts on different ranks: who holds which, what travels, and the same sum in the end.

Upstream twins: `vllm/model_executor/layers/fused_moe/expert_map_manager.py`, `prepare_finalize/`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mini_vllm.layers.fused_moe.config import PLACEMENTS
from mini_vllm.layers.fused_moe.fused_moe import fused_experts
from mini_vllm.utils.arrays import Array


def determine_expert_map(
    ep_size: int, ep_rank: int, num_experts: int, strategy: str = "linear"
) -> tuple[int, Array | None]:
    """How many experts a rank holds, and where.

    Where the ranks do not divide the experts, the first ranks hold one more (upstream's docstring says the last).

    Args:
        strategy: "linear" (a run of consecutive experts) or "round_robin" (every ep_size-th).

    Returns:
        number of local experts; map [num_experts] int32: global id -> local id, -1 for the experts of others. The map
        is None with one rank: nothing to translate.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/expert_map_manager.py:22 — `determine_expert_map`.
    """
    if not 0 <= ep_rank < ep_size:
        raise ValueError(f"ep_rank must be in 0..{ep_size - 1} (ep_size {ep_size}), got {ep_rank}")
    if strategy not in PLACEMENTS:
        raise ValueError(f"strategy must be one of {', '.join(PLACEMENTS)}, got {strategy!r}")
    if ep_size == 1:
        return num_experts, None
    base, remainder = divmod(num_experts, ep_size)
    count = base + (ep_rank < remainder)
    first = ep_rank * base + min(ep_rank, remainder)
    held = np.arange(first, first + count) if strategy == "linear" else np.arange(ep_rank, num_experts, ep_size)
    expert_map = np.full(num_experts, -1, np.int32)
    expert_map[held] = np.arange(count)
    return count, expert_map


@dataclass(frozen=True)
class ExpertPlacement:
    """All ranks' maps together. `rank_of` [num_experts]: who holds each expert."""

    ep_size: int
    num_experts: int
    strategy: str = "linear"

    @property
    def maps(self) -> list[Array]:
        """Each rank's map [num_experts]; with one rank, the identity."""
        found = [determine_expert_map(self.ep_size, r, self.num_experts, self.strategy)[1] for r in range(self.ep_size)]
        return [np.arange(self.num_experts, dtype=np.int32) if m is None else m for m in found]

    @property
    def rank_of(self) -> Array:
        """[num_experts] int64."""
        return np.stack(self.maps).argmax(axis=0) if self.ep_size > 1 else np.zeros(self.num_experts, np.int64)

    def local_experts(self, rank: int) -> Array:
        """Global ids of the experts on this rank, in the order of their local ids."""
        return np.flatnonzero(self.maps[rank] >= 0)


def ep_forward(
    x: Array, w13: Array, w2: Array, topk_weights: Array, topk_ids: Array, ep_size: int, strategy: str = "linear"
) -> Array:
    """Expert parallelism without an all-to-all: every rank sees all tokens, computes its experts, and all add up.

    This is upstream's way with tensor-parallel attention, whose activations are everywhere already.

    Args, returns: as `fused_experts`; `w13`, `w2` hold all experts, of which each rank is given its own.
    """
    placement = ExpertPlacement(ep_size, len(w13), strategy)
    total = np.zeros_like(x)
    for rank, expert_map in enumerate(placement.maps):
        held = placement.local_experts(rank)
        total += fused_experts(x, w13[held], w2[held], topk_weights, topk_ids, expert_map=expert_map)
    return total


def ep_forward_all2all(
    x_of_rank: list[Array],
    w13: Array,
    w2: Array,
    weights_of_rank: list[Array],
    ids_of_rank: list[Array],
    strategy: str = "linear",
) -> list[Array]:
    """Expert parallelism over data-parallel ranks: rows are sent to the experts' ranks, and their results back.

    dispatch: a rank sends a row once to every rank that holds one of its experts, with the ids and weights;
    experts: each rank computes what it received, a partial sum for every row;
    combine: partial sums go home and are added.

    Args:
        x_of_rank, weights_of_rank, ids_of_rank: per rank, its own tokens [t, hidden], [t, top_k], [t, top_k].

    Returns:
        per rank, its tokens' results [t, hidden].

    Upstream: upstream/vllm/model_executor/layers/fused_moe/modular_kernel.py:181 — `FusedMoEPrepareAndFinalize`.
    """
    placement = ExpertPlacement(len(x_of_rank), len(w13), strategy)
    out = [np.zeros_like(x) for x in x_of_rank]
    for rank, expert_map in enumerate(placement.maps):
        held = placement.local_experts(rank)
        wanted = [np.flatnonzero((expert_map[ids] >= 0).any(axis=1)) for ids in ids_of_rank]
        received = [
            np.concatenate([part[rows] for part, rows in zip(parts, wanted, strict=True)])
            for parts in (x_of_rank, weights_of_rank, ids_of_rank)
        ]
        partial = fused_experts(received[0], w13[held], w2[held], received[1], received[2], expert_map=expert_map)
        sizes = np.cumsum([len(rows) for rows in wanted])[:-1]
        for home, (rows, results) in enumerate(zip(wanted, np.split(partial, sizes), strict=True)):
            out[home][rows] += results
    return out


def dispatch_matrix(ids_of_rank: list[Array], num_experts: int, strategy: str = "linear") -> Array:
    """Rows that travel from rank to rank, [ranks, ranks] int64: entry (a, b) counts tokens of a with an expert on b.

    A token with two experts on one rank is sent there once. The diagonal stays at home.
    """
    placement = ExpertPlacement(len(ids_of_rank), num_experts, strategy)
    return np.array([[int((m[ids] >= 0).any(axis=1).sum()) for m in placement.maps] for ids in ids_of_rank], np.int64)


def all2all_bytes(matrix: Array, hidden: int, dispatch_itemsize: int = 2, combine_itemsize: int = 2) -> int:
    """Bytes that one MoE layer sends between ranks, both ways: the off-diagonal rows of `dispatch_matrix`."""
    rows = int(matrix.sum() - np.trace(matrix))
    return rows * hidden * (dispatch_itemsize + combine_itemsize)
