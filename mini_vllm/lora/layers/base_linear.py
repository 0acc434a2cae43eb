"""A projection with a buffer for each slot: the base's product, and on top of it what each row's adapter adds.

Upstream twin: `vllm/lora/layers/base_linear.py`. There the wrapper takes the projection's place in the model, and a
subclass for each kind of projection cuts the factors; here it hangs on the projection, which knows what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.layers.linear import LinearBase
from mini_vllm.lora.lora_weights import LoRALayerWeights
from mini_vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from mini_vllm.lora.utils import projection_names
from mini_vllm.utils.arrays import Array


class BaseLinearLayerWithLoRA:
    """Args:
        base_layer: gets this object as its `lora`.
        max_loras: slots. max_lora_rank: r of the buffers.
        punica_wrapper: knows which row reads which slot.

    Attributes:
        names: of the projections that the checkpoint has for this layer, its slices.
        lora_a_stacked: [slots, slices, r, in]. lora_b_stacked: for each slice [slots, r, its outputs] (upstream
            stores [out, r]). With ranks, in and outputs are this rank's: the half of the factors that the base layer
            cuts is cut with it, so that the delta is there before the base's own exchange and needs none of its own.

    Upstream: upstream/vllm/lora/layers/base_linear.py:69 — `BaseLinearLayerWithLoRA`.
    """

    def __init__(
        self, base_layer: LinearBase, max_loras: int, max_lora_rank: int, punica_wrapper: PunicaWrapperCPU
    ) -> None:
        self.base_layer, self.punica_wrapper = base_layer, punica_wrapper
        self.names = projection_names(base_layer)
        if not base_layer.is_one_tensor and len(self.names) != len(base_layer.partitions):
            raise ValueError(
                f"{base_layer.prefix!r} has {len(base_layer.partitions)} parts, and names for {self.names}"
            )
        self.create_lora_weights(max_loras, max_lora_rank)
        base_layer.lora = self

    def create_lora_weights(self, max_loras: int, max_lora_rank: int) -> None:
        """Reserve the buffers, whatever adapters will come.

        Upstream: upstream/vllm/lora/layers/base_linear.py:99 — `BaseLinearLayerWithLoRA.create_lora_weights`.
        """
        base, slices = self.base_layer, self.base_layer.partitions
        self.lora_a_stacked = np.zeros((max_loras, len(slices), max_lora_rank, base.in_features), base.dtype)
        self.lora_b_stacked = [np.zeros((max_loras, max_lora_rank, size), base.dtype) for size in slices]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Name in the checkpoint -> (outputs, inputs), of the whole weight."""
        base = self.base_layer
        sizes = [base.output_size] if base.is_one_tensor else base.output_sizes
        return {name: (size, base.input_size) for name, size in zip(self.names, sizes, strict=True)}

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self.lora_a_stacked.nbytes + sum(b.nbytes for b in self.lora_b_stacked)

    def reset_lora(self, index: int) -> None:
        """Nothing in a slot. Upstream: upstream/vllm/lora/layers/base_linear.py:152 — "def reset_lora"."""
        self.lora_a_stacked[index] = 0
        for b in self.lora_b_stacked:
            b[index] = 0

    def set_lora(self, index: int, loras: Sequence[LoRALayerWeights | None]) -> None:
        """Put an adapter into a slot; a smaller rank leaves zeros.

        loras: one for each of `names`, None: not changed. That of one tensor is cut into the slices.

        Upstream: upstream/vllm/lora/layers/base_linear.py:157 — `BaseLinearLayerWithLoRA.set_lora`.
        """
        self.reset_lora(index)
        base, start = self.base_layer, 0
        for i, rows in enumerate(base.rows):
            lora = loras[0 if base.is_one_tensor else i]
            if lora is not None:
                here = slice(start + rows.start, start + rows.stop)
                self.lora_a_stacked[index, i, : lora.rank] = lora.lora_a[:, base.columns]
                self.lora_b_stacked[i][index, : lora.rank] = lora.lora_b[here].T
            start += base.output_sizes[i] if base.is_one_tensor else 0

    def add_to(self, y: Array, x: Array, first: int = 0) -> None:
        """Add the deltas to the base's product. y [T, out], x [T, in]; first: see `add_lora_linear`.

        Upstream: upstream/vllm/lora/layers/base_linear.py:206 — `_apply_lora_to_output`.
        """
        self.punica_wrapper.add_lora_linear(y, x, self.lora_a_stacked, self.lora_b_stacked, first)
