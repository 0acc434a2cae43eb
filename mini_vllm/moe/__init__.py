"""Mixture of experts: routing, alignment, grouped experts, expert parallelism, load balancing.

`routing` (who gets a token) -> `align` (tokens sorted by expert) -> `experts` (the products) ; `parallel` (experts on
ranks), `load` (how even it is), `eplb` (making it even). Upstream twins: `vllm/model_executor/layers/fused_moe/`,
`vllm/distributed/eplb/`.
"""

from mini_vllm.moe.align import max_num_tokens_padded, moe_align_block_size, sort_by_expert
from mini_vllm.moe.eplb import (
    EplbState,
    balanced_packing,
    compute_logical_maps,
    initial_phy2log,
    map_to_physical,
    preserve_slots,
    rebalance_experts,
    replicate_experts,
)
from mini_vllm.moe.experts import (
    FusedMoE,
    expert_mlp,
    fused_experts,
    moe_forward_naive,
    moe_forward_reference,
    silu,
)
from mini_vllm.moe.load import ExpertLoad, balancedness, device_loads, expert_loads, imbalance, padded_rows
from mini_vllm.moe.parallel import (
    ExpertPlacement,
    all2all_bytes,
    determine_expert_map,
    dispatch_matrix,
    ep_forward,
    ep_forward_all2all,
)
from mini_vllm.moe.routing import fused_topk, grouped_topk, route

__all__ = [
    "EplbState",
    "ExpertLoad",
    "ExpertPlacement",
    "FusedMoE",
    "all2all_bytes",
    "balanced_packing",
    "balancedness",
    "determine_expert_map",
    "device_loads",
    "dispatch_matrix",
    "ep_forward",
    "ep_forward_all2all",
    "expert_loads",
    "expert_mlp",
    "fused_experts",
    "fused_topk",
    "grouped_topk",
    "imbalance",
    "initial_phy2log",
    "compute_logical_maps",
    "map_to_physical",
    "max_num_tokens_padded",
    "moe_align_block_size",
    "moe_forward_naive",
    "moe_forward_reference",
    "padded_rows",
    "preserve_slots",
    "rebalance_experts",
    "replicate_experts",
    "route",
    "silu",
    "sort_by_expert",
]
