"""The experts' products, grouped: one pass over the tokens sorted by expert, as upstream's `fused_experts`.

    align (sort by expert) -> GEMM 1 (gate and up) -> SwiGLU -> GEMM 2 (down, times the router's weight) -> sum over k

A GPU runs each GEMM as one launch whose grid goes over the blocks of all experts; here a loop over the experts that
have work is that grid. Upstream twin: `vllm/model_executor/layers/fused_moe/fused_moe.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mini_vllm.layers.activation import silu
from mini_vllm.layers.fused_moe.moe_align_block_size import sort_by_expert
from mini_vllm.platforms.cpu.kernels import silu_and_mul
from mini_vllm.platforms.cpu.products import project
from mini_vllm.utils.arrays import Array

LAUNCHES_PER_LAYER = 5
"""Kernels that upstream's Triton path launches for the experts of a layer, however many experts there are.
Upstream: upstream/vllm/model_executor/layers/fused_moe/fused_moe.py:1664 — `fused_experts_impl`."""


class Launches(Protocol):
    """Counts kernel launches: `LaunchCounter` (`compilation/cudagraph/runners.py`) does."""

    def bump(self, k: int = 1) -> object:
        """Count k more."""


def expert_mlp(x: Array, w13: Array, w2: Array) -> Array:
    """One expert: `(silu(x @ gate.T) * (x @ up.T)) @ w2.T`.

    Args:
        x: [tokens, hidden]; w13: [2 * inter, hidden], gate over up; w2: [hidden, inter].
    """
    gate, up = np.split(x @ w13.T, 2, axis=-1)
    return (silu(gate) * up) @ w2.T


def moe_forward_reference(x: Array, w13: Array, w2: Array, topk_weights: Array, topk_ids: Array) -> Array:
    """Token by token, as a paper would write it: slow, and the oracle for everything else.

    Args, returns: as `fused_experts`.
    """
    out = np.zeros_like(x)
    for token in range(len(x)):
        for weight, expert in zip(topk_weights[token], topk_ids[token], strict=True):
            if expert >= 0:
                out[token] += weight * expert_mlp(x[token : token + 1], w13[expert], w2[expert])[0]
    return out


def fused_experts(
    x: Array,
    w13: Array | Sequence[Any],
    w2: Array | Sequence[Any],
    topk_weights: Array,
    topk_ids: Array,
    *,
    expert_map: Array | None = None,
    launches: Launches | None = None,
) -> Array:
    """All experts over all their tokens, and every token's weighted sum.

    Args:
        x: [tokens, hidden].
        w13: [experts, 2 * inter, hidden]; w2: [experts, hidden, inter]; or lists of such matrices.
        topk_weights, topk_ids: [tokens, top_k], see `fused_topk`.
        expert_map: [global experts] -> index into w13 and w2, or -1: that expert's share is another rank's.
        launches: counts what a GPU would launch.

    Returns:
        [tokens, hidden].

    Upstream: upstream/vllm/model_executor/layers/fused_moe/fused_moe.py:1587 — `fused_experts`.
    """
    num_tokens, top_k = topk_ids.shape
    local_ids = topk_ids if expert_map is None else expert_map[topk_ids]
    order, starts = sort_by_expert(local_ids, len(w13))
    rows = x[order // top_k]  # upstream's kernel gathers by index while it loads, without this copy
    weights = topk_weights.reshape(-1)[order].astype(x.dtype, copy=False)[:, None]
    per_assignment = np.zeros((num_tokens * top_k, x.shape[1]), x.dtype)
    with np.errstate(over="ignore"):
        for expert in np.flatnonzero(starts[1:] > starts[:-1]).tolist():
            segment = slice(starts[expert], starts[expert + 1])
            down = _products(rows[segment], w13[expert], w2[expert])
            per_assignment[order[segment]] = down * weights[segment]
    if launches is not None:
        launches.bump(LAUNCHES_PER_LAYER)
    return per_assignment.reshape(num_tokens, top_k, x.shape[1]).sum(axis=1)


def _products(rows: Array, w13: Any, w2: Any) -> Array:
    """`expert_mlp` as a kernel computes it: features first, in place, with weights that may be quantized."""
    gate_up = np.empty((w13.shape[0], len(rows)), rows.dtype)
    project(w13, rows.T, gate_up)
    gate, up = gate_up[: len(gate_up) // 2], gate_up[len(gate_up) // 2 :]
    silu_and_mul(gate, up, np.empty_like(gate))
    down = np.empty((w2.shape[0], len(rows)), rows.dtype)
    project(w2, gate, down)
    return down.T


def moe_forward_naive(
    x: Array, w13: Array, w2: Array, topk_weights: Array, topk_ids: Array, launches: Launches | None = None
) -> Array:
    """Two small products for every (token, expert) pair: what fusing saves, counted by `launches`."""
    if launches is not None:
        launches.bump(2 * topk_ids.size)
    return moe_forward_reference(x, w13, w2, topk_weights, topk_ids)
