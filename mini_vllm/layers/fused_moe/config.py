"""Which ranks hold which experts. Upstream twin: `vllm/model_executor/layers/fused_moe/config.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.distributed.device_communicators.all2all import All2AllManagerBase


PLACEMENTS = ("linear", "round_robin")


@dataclass(frozen=True)
class FusedMoEParallelConfig:
    """How the experts of all layers are dealt, where ranks hold whole ones.

    Attributes:
        expert_placement_strategy: one of `PLACEMENTS`. Upstream takes "linear" for it in some cases where its kernels
            know nothing else (expert_map_manager.py, `determine_expert_placement_strategy`); here it holds always.
        all2all: hands rows to the experts of other replicas; None: there is one replica, or each has all experts.

    Upstream: upstream/vllm/model_executor/layers/fused_moe/config.py:1014 — `FusedMoEParallelConfig`.
    """

    expert_placement_strategy: str = "linear"
    all2all: All2AllManagerBase | None = None
