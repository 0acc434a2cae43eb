"""What all layers of one model share, handed to each of them when it is made.

Upstream keeps these things in global state: the process groups of `vllm/distributed/parallel_state.py`, the current
`VllmConfig`, torch's default dtype, and a table of rotary embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import RankGroup, TensorParallelGroup
from mini_vllm.distributed.utils import divide
from mini_vllm.layers.batch_invariant import linear_batch_invariant, vllm_is_batch_invariant
from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.platforms.cpu.memory import WeightMemory
from mini_vllm.utils.arrays import Array


@dataclass(frozen=True)
class ModelContext:
    """Settings that hold for a whole model, and the list of its layers.

    Attributes:
        dtype: of weights and activations.
        quant_config: picks how each projection is stored; None: floats.
        group: the ranks that share every layer, this process one of them; None: it is alone.
        enable_expert_parallel: ranks hold whole experts instead of a share of each.
        pp: the ranks that have one stage of a pipeline each, this process one of them; None: it has all layers.
        missing: prefixes of what other stages have.
        ep: how whole experts are dealt, to ranks of other replicas too.
        layers: every layer with weights, in the order in which they were made.
        ropes: rotary embeddings that are there already, so that all layers use one table.
        batch_invariant: products have the same bits in every batch (`layers/batch_invariant.py`).
    """

    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype("float32"))
    quant_config: QuantizationConfig | None = None
    group: TensorParallelGroup | None = None
    enable_expert_parallel: bool = False
    layers: list[Any] = field(default_factory=list)
    ropes: dict[Any, Any] = field(default_factory=dict)
    memory: WeightMemory = field(default_factory=WeightMemory)
    batch_invariant: bool = field(default_factory=vllm_is_batch_invariant)
    pp: RankGroup | None = None
    missing: list[str] = field(default_factory=list)
    ep: FusedMoEParallelConfig = field(default_factory=FusedMoEParallelConfig)

    @property
    def tp_size(self) -> int:
        """Ranks of tensor parallelism."""
        return 1 if self.group is None else self.group.world_size

    @property
    def tp_rank(self) -> int:
        """Which of them this process is."""
        return 0 if self.group is None else self.group.rank

    @property
    def is_first_rank(self) -> bool:
        """Whether this process has the first layer, and the embedding."""
        return self.pp is None or self.pp.is_first_rank

    @property
    def is_last_rank(self) -> bool:
        """Whether this process has the last layer, the last norm and the output embedding."""
        return self.pp is None or self.pp.is_last_rank

    def in_floats(self) -> ModelContext:
        """The same for a layer that is never quantized."""
        return replace(self, quant_config=None)

    def new(self, *shape: int) -> Array:
        """An array to be filled."""
        return self.memory.new(shape, self.dtype)

    def linear(self, x: Array, weight: Array) -> Array:
        """x [T, in] times weight [out, in] -> [T, out]."""
        return linear_batch_invariant(x, weight) if self.batch_invariant else x @ weight.T

    def divide(self, size: int, what: str) -> int:
        """A rank's share of `size`. Raises ValueError where the ranks do not divide it."""
        return divide(size, self.tp_size, what)

    def share(self, size: int, what: str) -> slice:
        """This rank's consecutive part of `size` rows or columns."""
        count = self.divide(size, what)
        return slice(self.tp_rank * count, (self.tp_rank + 1) * count)

    def all_reduce(self, x: Array) -> Array:
        """The sum over ranks.

        Upstream: upstream/vllm/distributed/communication_op.py:12 — `tensor_model_parallel_all_reduce`.
        """
        return x if self.group is None else self.group.all_reduce(x)

    def all_gather(self, x: Array) -> Array:
        """What all ranks have, side by side along the last axis.

        Upstream: upstream/vllm/distributed/communication_op.py:17 — `tensor_model_parallel_all_gather`.
        """
        return x if self.group is None else self.group.all_gather(x)
