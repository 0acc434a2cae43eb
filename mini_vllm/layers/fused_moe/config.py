"""Which ranks hold which experts. Upstream twin: `vllm/model_executor/layers/fused_moe/config.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.distributed.device_communicators.all2all import All2AllManagerBase
    from mini_vllm.layers.context import ModelContext


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

    def ranks(self, context: ModelContext) -> tuple[int, int]:
        """How many ranks have other whole experts each, and which of them this process is: (1, 0) where all have all.

        Upstream: upstream/vllm/model_executor/layers/fused_moe/config.py:1097 — `FusedMoEParallelConfig.make`.
        """
        if not context.enable_expert_parallel:
            return 1, 0
        return (
            (context.tp_size, context.tp_rank) if self.all2all is None else (self.all2all.world_size, self.all2all.rank)
        )
