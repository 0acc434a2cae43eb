"""Which experts get a token, and with what weight.

Upstream twins: `vllm/model_executor/layers/fused_moe/router/fused_topk_router.py`, `grouped_topk_router.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.utils.arrays import Array

SCORING_FUNCS = ("softmax", "sigmoid")


def fused_topk(
    router_logits: Array, top_k: int, renormalize: bool, scoring_func: str = "softmax"
) -> tuple[Array, Array]:
    """The `top_k` experts of every token: scores over all experts first, then the choice.

    Equal scores go to the expert with the smaller id, as in upstream's kernel.

    Args:
        router_logits: [tokens, num_experts].
        renormalize: divide the chosen scores by their sum. After a softmax that is the softmax over the chosen logits.
        scoring_func: "softmax", or "sigmoid" (each expert by itself).

    Returns:
        weights [tokens, top_k] in the type of the logits (at least float32), ids [tokens, top_k] int32;
        the likeliest expert comes first, and no expert twice in a row.

    Raises:
        ValueError: `top_k` is not in 1..num_experts, or the scoring function is unknown.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/router/fused_topk_router.py:69 — `fused_topk`.
    """
    _check_top_k(top_k, router_logits.shape[-1])
    scores = _scores(router_logits, scoring_func)
    weights, ids = _best(scores, top_k)
    if renormalize:
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights, ids


def grouped_topk(
    router_logits: Array,
    top_k: int,
    renormalize: bool,
    num_expert_group: int,
    topk_group: int,
    scoring_func: str = "softmax",
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: Array | None = None,
) -> tuple[Array, Array]:
    """DeepSeek's choice: first the best `topk_group` groups of experts, then the best `top_k` experts in them.

    A group is as good as its best expert; with a correction bias, as its best two together. The bias helps to choose,
    but the weights are the scores without it.

    Args, returns: as `fused_topk`; experts are grouped by consecutive ids; the bias is [num_experts].

    Upstream: upstream/vllm/model_executor/layers/fused_moe/router/grouped_topk_router.py:81 — `grouped_topk`.
    """
    num_experts = router_logits.shape[-1]
    if num_experts % num_expert_group:
        raise ValueError(f"num_expert_group={num_expert_group} must divide the number of experts, {num_experts}")
    if not 1 <= topk_group <= num_expert_group:
        raise ValueError(f"topk_group must be in 1..{num_expert_group}, got {topk_group}")
    group_size = num_experts // num_expert_group
    _check_top_k(top_k, topk_group * group_size)
    scores = _scores(router_logits, scoring_func)
    choice = scores if e_score_correction_bias is None else scores + e_score_correction_bias
    in_groups = choice.reshape(len(choice), num_expert_group, group_size)
    best = 1 if e_score_correction_bias is None else 2
    _, groups = _best(np.sort(in_groups, axis=-1)[..., -best:].sum(axis=-1), topk_group)
    allowed = np.zeros(in_groups.shape[:2], bool)
    np.put_along_axis(allowed, groups.astype(np.int64), True, axis=-1)
    _, ids = _best(np.where(np.repeat(allowed, group_size, axis=1), choice, -np.inf), top_k)
    weights = np.take_along_axis(scores, ids.astype(np.int64), axis=-1)
    if renormalize:
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights * routed_scaling_factor, ids


def route(x: Array, w_gate: Array, k: int) -> tuple[Array, Array]:
    """The router of a textbook: `logits = x @ w_gate.T`, the best k, softmax over these k.

    Args:
        x: [tokens, hidden]; w_gate: [num_experts, hidden].

    Returns:
        ids [tokens, k], weights [tokens, k]: what `fused_topk(logits, k, renormalize=True)` finds, in the order of
        the course's labs.
    """
    weights, ids = fused_topk(x @ w_gate.T, k, renormalize=True)
    return ids, weights


def _check_top_k(top_k: int, num_experts: int) -> None:
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k must be in 1..{num_experts} (the experts to choose from), got {top_k}")


def _scores(logits: Array, scoring_func: str) -> Array:
    logits = logits.astype(np.result_type(logits, np.float32), copy=False)
    if scoring_func == "softmax":
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
        return scores / scores.sum(axis=-1, keepdims=True)
    if scoring_func == "sigmoid":
        return 1.0 / (1.0 + np.exp(-logits))
    raise ValueError(f"scoring_func must be one of {', '.join(SCORING_FUNCS)}, got {scoring_func!r}")


def _best(scores: Array, k: int) -> tuple[Array, Array]:
    """Values and ids (int32) of the k largest of every row, largest first; of equals, the smaller id."""
    ids = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(scores, ids, axis=-1), ids.astype(np.int32)
