"""Tokens sorted by expert, and padded so that every block of a grouped GEMM belongs to one expert.

Upstream twins: `vllm/model_executor/layers/fused_moe/moe_align_block_size.py` and its kernel,
`csrc/moe/moe_align_sum_kernels.cu`: a counting sort (histogram, round up to blocks, prefix sum, scatter).
"""

from __future__ import annotations

import numpy as np

from mini_vllm.utils.arrays import Array


def sort_by_expert(topk_ids: Array, num_experts: int) -> tuple[Array, Array]:
    """Assignments in the order of their experts, without padding.

    An assignment is a place in the flattened `topk_ids` [tokens, top_k]: number `i` belongs to token `i // top_k`.

    Returns:
        order [assignments]: numbers of assignments; those of an expert are consecutive and in their first order.
        starts [num_experts + 1]: expert e has `order[starts[e] : starts[e + 1]]`. Ids outside 0..num_experts - 1 are
        left out (expert parallelism marks the experts of others with -1), so `starts[-1]` may be less than all.
    """
    flat = topk_ids.reshape(-1)
    valid = np.flatnonzero((flat >= 0) & (flat < num_experts))
    order = valid[np.argsort(flat[valid], kind="stable")]
    counts = np.bincount(flat[valid], minlength=num_experts)
    return order, np.concatenate([[0], np.cumsum(counts)])


def moe_align_block_size(
    topk_ids: Array,
    block_size: int,
    num_experts: int,
    expert_map: Array | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> tuple[Array, Array, int]:
    """Sort assignments by expert and pad each expert's share to a multiple of `block_size`.

    Both arrays have the worst case's size, which is known before the routing is; only the first
    `num_tokens_post_padded` entries (and blocks) hold work.

    >>> ids = np.array([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]])
    >>> sorted_token_ids, expert_ids, num_tokens_post_padded = moe_align_block_size(ids, 4, num_experts=5)
    >>> sorted_token_ids[:num_tokens_post_padded].tolist()
    [3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12]
    >>> expert_ids.tolist(), num_tokens_post_padded
    ([1, 2, 3, 4, -1, -1, -1], 16)

    Args:
        topk_ids: [tokens, top_k], whole numbers; ids of `num_experts` and more are passed over.
        expert_map: [num_experts], global id -> local id or -1 (see `determine_expert_map`).
        pad_sorted_ids: make the size of `sorted_token_ids` a multiple of `block_size`.
        ignore_invalid_experts: leave out the assignments of experts that the map does not have. Else they keep their
            blocks, which are marked -1.

    Returns:
        sorted_token_ids: int32, numbers of assignments (`i // top_k` is the token); padding is the number of all.
        expert_ids: int32, the expert of every block; -1: nothing to do.
        num_tokens_post_padded: upstream has it as a tensor of one element, for the kernel to read.

    Raises:
        ValueError: `block_size` is less than 1.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/moe_align_block_size.py:11 — `moe_align_block_size`. There
    the order inside an expert's share is not fixed for large inputs (atomics); here it is that of the tokens.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    numel = topk_ids.size
    filtered = topk_ids
    if expert_map is not None and ignore_invalid_experts:
        filtered = np.where(topk_ids < num_experts, expert_map[np.minimum(topk_ids, num_experts - 1)], -1)
    order, starts = sort_by_expert(filtered, num_experts)
    counts = np.diff(starts)
    padded_ends = np.cumsum(-(-counts // block_size) * block_size)

    size = max_num_tokens_padded(numel, block_size, num_experts, pad_sorted_ids)
    sorted_token_ids = np.full(size, numel, np.int32)
    padding_before = np.concatenate([[0], padded_ends[:-1]]) - starts[:-1]
    sorted_token_ids[np.arange(len(order)) + np.repeat(padding_before, counts)] = order

    expert_ids = np.full(-(-size // block_size), -1, np.int32)
    blocks = np.repeat(np.arange(num_experts, dtype=np.int32), -(-counts // block_size))
    expert_ids[: len(blocks)] = blocks
    if expert_map is not None and not ignore_invalid_experts:
        expert_ids = expert_map[expert_ids].astype(np.int32)  # unused blocks index with -1: never read, as upstream
    return sorted_token_ids, expert_ids, int(padded_ends[-1])


def max_num_tokens_padded(numel: int, block_size: int, num_experts: int, pad: bool = False) -> int:
    """Room for any routing of `numel` assignments: every expert may waste `block_size - 1` places.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/moe_align_block_size.py:74 — "max_num_tokens_padded".
    """
    size = numel + num_experts * (block_size - 1)
    if pad:
        size = -(-size // block_size) * block_size
    return min(numel * block_size, size) if numel < num_experts else size
