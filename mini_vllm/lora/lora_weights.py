"""The two factors of one projection's patch. Upstream twin: `vllm/lora/lora_weights.py`."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.lora.peft_helper import PEFTHelper
from mini_vllm.utils.arrays import Array


@dataclass
class LoRALayerWeights:
    """`W + scaling * lora_b @ lora_a`, without the sum.

    Attributes:
        module_name: of the projection, as the checkpoint names it. rank: r.
        lora_a: [r, in], "shrink". lora_b: [out, r], "expand". scaling: 1 after `optimize`.

    Upstream: upstream/vllm/lora/lora_weights.py:13 — `LoRALayerWeights`.
    """

    module_name: str
    rank: int
    lora_a: Array
    lora_b: Array
    scaling: float = 1.0

    @classmethod
    def from_config(cls, module_name: str, peft_helper: PEFTHelper, lora_a: Array, lora_b: Array) -> LoRALayerWeights:
        """With the strength that the adapter's file says.

        Upstream: upstream/vllm/lora/lora_weights.py:57 — `LoRALayerWeights.from_config`.
        """
        return cls(module_name, peft_helper.r, lora_a, lora_b, peft_helper.scaling)

    def optimize(self) -> LoRALayerWeights:
        """Fold the strength into `lora_b`, so that nobody multiplies by it again.

        Upstream: upstream/vllm/lora/lora_weights.py:36 — `LoRALayerWeights.optimize`.
        """
        if self.scaling != 1.0:
            self.lora_b, self.scaling = self.lora_b * self.scaling, 1.0
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of both factors."""
        return self.lora_a.nbytes + self.lora_b.nbytes
