"""Expert-parallel load balancing. Upstream twin: `vllm/distributed/eplb/`."""

from mini_vllm.distributed.eplb.eplb_state import EplbState, compute_logical_maps, initial_phy2log, map_to_physical
from mini_vllm.distributed.eplb.policy.default import (
    balanced_packing,
    preserve_slots,
    rebalance_experts,
    replicate_experts,
)

__all__ = [
    "EplbState",
    "balanced_packing",
    "compute_logical_maps",
    "initial_phy2log",
    "map_to_physical",
    "preserve_slots",
    "rebalance_experts",
    "replicate_experts",
]
