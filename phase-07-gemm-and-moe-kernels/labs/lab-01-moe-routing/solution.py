"""Lab 07-01: a mixture-of-experts layer twice: as the mathematics has it, and as a GPU wants it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Expert = tuple[np.ndarray, np.ndarray]
"""(W1 [D, H], W2 [H, D]). Given."""


def route(x: np.ndarray, W_gate: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose k experts for each token, and their weights.

    Args:
        x: hidden states [T, D].
        W_gate: the router's weights, one row an expert, [E, D].
        k: experts per token, 1 to E.

    Returns:
        ids [T, k], best first, of equal logits the smaller id first; weights [T, k], a softmax over the chosen logits,
        of their type.

    Raises:
        ValueError: k is out of range: "k must be 1 to 8", if there are 8 experts.

    Upstream (weights first, and softmax before the choice, renormalized after it):
    upstream/vllm/model_executor/layers/fused_moe/router/fused_topk_router.py:69 — `fused_topk`.
    """
    if not 1 <= k <= len(W_gate):
        raise ValueError(f"k must be 1 to {len(W_gate)} (the number of experts), got {k}")
    logits = x @ W_gate.T
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    chosen = np.take_along_axis(logits, ids, axis=1)
    weights = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    return ids, weights / weights.sum(axis=1, keepdims=True)


def expert_mlp(x: np.ndarray, W1: np.ndarray, W2: np.ndarray) -> np.ndarray:
    """One expert on the rows of x [n, D]: relu(x W1) W2, [n, D]."""
    return np.maximum(x @ W1, 0) @ W2


def moe_forward_reference(x: np.ndarray, experts: Sequence[Expert], ids: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The layer as the formula says it: for each token, for each of its experts, add the weighted output.

    Args:
        x: [T, D].
        experts: E pairs.
        ids: [T, k]; an id may stand twice in a row, then it counts twice.
        w: [T, k].

    Returns:
        [T, D], of x's type. `expert_mlp` runs T * k times, on one row [1, D] each.
    """
    out = np.zeros_like(x)
    for token in range(len(x)):
        for j in range(ids.shape[1]):
            expert = experts[ids[token, j]]
            out[token] += w[token, j] * expert_mlp(x[token : token + 1], *expert)[0]
    return out


def sort_by_expert(ids: np.ndarray, num_experts: int) -> tuple[np.ndarray, np.ndarray]:
    """The permutation that puts all work of one expert side by side.

    Args:
        ids: [T, k]. Entry `i` of the flat array belongs to token `i // k`.
        num_experts: E.

    Returns:
        order [T * k]: indices into the flat array, expert 0's first, in each expert in ascending order.
        starts [E + 1]: expert e has `order[starts[e] : starts[e + 1]]`.

    Upstream (a counting sort on the GPU, each expert padded to whole blocks):
    upstream/vllm/model_executor/layers/fused_moe/moe_align_block_size.py:11 — `moe_align_block_size`.
    """
    flat = ids.ravel()
    counts = np.bincount(flat, minlength=num_experts)
    return np.argsort(flat, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def moe_forward_grouped(x: np.ndarray, experts: Sequence[Expert], ids: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The same layer, grouped: `expert_mlp` runs once for each expert that has rows, on all of them, and for no other.

    Arguments and result as in `moe_forward_reference`; experts run in the order of their ids.
    """
    order, starts = sort_by_expert(ids, len(experts))
    tokens = order // ids.shape[1]
    rows = x[tokens]
    outputs = np.empty_like(rows)
    for e, expert in enumerate(experts):
        segment = slice(starts[e], starts[e + 1])
        if starts[e] < starts[e + 1]:
            outputs[segment] = expert_mlp(rows[segment], *expert)
    out = np.zeros_like(x)
    np.add.at(out, tokens, w.ravel()[order, None] * outputs)
    return out


def aligned_rows(starts: np.ndarray, block_size: int) -> int:
    """Rows of a grouped GEMM whose blocks hold one expert each.

    Args:
        starts: as from `sort_by_expert`.
        block_size: rows a block; a last block of an expert may be partly empty, and counts whole.

    Returns:
        An int: rows of all blocks, 0 where nothing is routed.
    """
    counts = np.diff(starts)
    return int((-(-counts // block_size) * block_size).sum())
