"""Mixture of experts: routing, alignment, grouped experts, expert parallelism.

`routing` (who gets a token) -> `moe_align_block_size` (tokens sorted by expert) -> `layer` (the products);
`expert_parallel` (experts on ranks), `expert_load` (how even it is), `mini_vllm.distributed.eplb` (making it even).
Upstream twin: `vllm/model_executor/layers/fused_moe/`.
"""

from mini_vllm.layers.fused_moe.expert_load import (
    ExpertLoad,
    balancedness,
    device_loads,
    expert_loads,
    imbalance,
    padded_rows,
)
from mini_vllm.layers.fused_moe.expert_parallel import (
    ExpertPlacement,
    all2all_bytes,
    determine_expert_map,
    dispatch_matrix,
    ep_forward,
    ep_forward_all2all,
)
from mini_vllm.layers.fused_moe.fused_moe import (
    expert_mlp,
    fused_experts,
    moe_forward_naive,
    moe_forward_reference,
    silu,
)
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.layers.fused_moe.moe_align_block_size import max_num_tokens_padded, moe_align_block_size, sort_by_expert
from mini_vllm.layers.fused_moe.routing import fused_topk, grouped_topk, route

__all__ = [
    "ExpertLoad",
    "ExpertPlacement",
    "FusedMoE",
    "all2all_bytes",
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
    "max_num_tokens_padded",
    "moe_align_block_size",
    "moe_forward_naive",
    "moe_forward_reference",
    "padded_rows",
    "route",
    "silu",
    "sort_by_expert",
]
