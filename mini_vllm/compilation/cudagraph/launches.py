"""How many kernel launches a forward pass is, by the way it runs. A count, not a time.

The kernels of a decoder layer as upstream issues them one by one, before any fusion by the compiler:

    before attention   norm (with the residual), q-k-v product, rotary
    attention          KV update, attention
    after attention    o product, norm (with the residual), gate-up product, SiLU and product, down product
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mini_vllm.config.compilation import CUDAGraphMode

KERNELS_PER_LAYER = 10
ATTENTION_KERNELS = 2
"""The KV update and the attention: what a piecewise graph leaves out."""
END_KERNELS = 2
"""The embedding and the last norm; the logits are computed outside of the graph."""
QK_NORM_KERNELS = 2
MOE_KERNELS = 4
"""A mixture of experts has seven in place of three: router, top-k, alignment, two grouped products, SiLU, sum."""


@dataclass(frozen=True)
class ForwardLaunches:
    """Launches of one forward pass of a model with `num_layers` layers of `kernels_per_layer` kernels each."""

    num_layers: int
    kernels_per_layer: int = KERNELS_PER_LAYER

    @classmethod
    def of(cls, model: Any) -> ForwardLaunches:
        """Counted from the model's configuration."""
        config = getattr(model, "config", None)
        kernels = KERNELS_PER_LAYER
        kernels += QK_NORM_KERNELS if getattr(config, "qk_norm", False) else 0
        kernels += MOE_KERNELS if getattr(config, "moe", None) else 0
        return cls(model.num_layers, kernels)

    @property
    def num_pieces(self) -> int:
        """Graphs of a piecewise capture: one before each attention layer, one after the last."""
        return self.num_layers + 1

    def in_mode(self, mode: CUDAGraphMode) -> int:
        """Launches of one step in this runtime mode."""
        if mode == CUDAGraphMode.FULL:
            return 1
        if mode == CUDAGraphMode.PIECEWISE:
            return self.num_pieces + self.num_layers * ATTENTION_KERNELS
        return END_KERNELS + self.num_layers * self.kernels_per_layer
