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
    raise NotImplementedError("k experts for each token, best first, and the weights that they get")


def expert_mlp(x: np.ndarray, W1: np.ndarray, W2: np.ndarray) -> np.ndarray:
    """One expert on the rows of x [n, D]: relu(x W1) W2, [n, D]."""
    raise NotImplementedError("the output of one expert for the rows of x")


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
    raise NotImplementedError("the layer's output, as the formula says it")


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
    raise NotImplementedError("the order that puts the work of one expert side by side, and where each begins")


def moe_forward_grouped(x: np.ndarray, experts: Sequence[Expert], ids: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The same layer, grouped: `expert_mlp` runs once for each expert that has rows, on all of them, and for no other.

    Arguments and result as in `moe_forward_reference`; experts run in the order of their ids.
    """
    raise NotImplementedError("the same output, with one product for each expert that has rows")


def aligned_rows(starts: np.ndarray, block_size: int) -> int:
    """Rows of a grouped GEMM whose blocks hold one expert each.

    Args:
        starts: as from `sort_by_expert`.
        block_size: rows a block; a last block of an expert may be partly empty, and counts whole.

    Returns:
        An int: rows of all blocks, 0 where nothing is routed.
    """
    raise NotImplementedError("how many rows the blocks have, the empty ones included")
