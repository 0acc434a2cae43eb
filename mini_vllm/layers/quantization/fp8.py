"""FP8 E4M3: made from floats while they load, or a checkpoint of `quant_method` "fp8" with its scales.

Upstream twin: `vllm/model_executor/layers/quantization/fp8.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.activations import ActivationScheme
from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from mini_vllm.layers.quantization.checkpoint_keys import FP8
from mini_vllm.layers.quantization.eight_bit import EightBitMethod
from mini_vllm.layers.quantization.online import OnlineConfig
from mini_vllm.layers.quantization.primitives import LOAD_ROWS
from mini_vllm.layers.quantization.utils.fp8_utils import decode_e4m3, fp8_scale, quantize_fp8
from mini_vllm.parameter import TensorSource
from mini_vllm.utils.arrays import Array


class Fp8Config(OnlineConfig):
    """FP8 E4M3: from floats (one scale a tensor, weights only), or a checkpoint of `quant_method` "fp8".

    Upstream rounds the activations in both cases. Here only a checkpoint says so (`activation_scheme`), unless the user
    gives `{"activation_scheme": "dynamic"}`.
    Upstream: upstream/vllm/model_executor/layers/quantization/fp8.py:100 — `Fp8Config`.
    """

    name = "fp8"

    def __init__(
        self,
        is_checkpoint_fp8_serialized: bool = False,
        activation_scheme: str | None = None,
        ignored_layers: list[str] | None = None,
        weight_block_size: list[int] | None = None,
    ) -> None:
        super().__init__(ignored_layers)
        if activation_scheme not in (None, "static", "dynamic"):
            raise ValueError(f"activation_scheme must be 'static' or 'dynamic', got {activation_scheme!r}")
        if activation_scheme == "static" and not is_checkpoint_fp8_serialized:
            raise ValueError("activation_scheme 'static' needs a checkpoint with input scales; use 'dynamic'")
        self.is_checkpoint_fp8_serialized = is_checkpoint_fp8_serialized
        if activation_scheme == "static" and weight_block_size:
            raise ValueError("activation_scheme must be 'dynamic' with weight_block_size, got 'static'")
        self.block = (weight_block_size[0], weight_block_size[1]) if weight_block_size else None
        self.activations: ActivationScheme | None = None
        if activation_scheme:
            group_size = self.block[1] if self.block else None
            self.activations = ActivationScheme("fp8", activation_scheme == "static", group_size=group_size)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """A checkpoint's config has `quant_method` "fp8"; without it the weights are floats."""
        read = FP8.read(config)
        ignored = cls.get_from_keys(read, ["ignored_layers", "modules_to_not_convert"], None)
        return cls(
            "fp8" in read.get("quant_method", ""), read.get("activation_scheme"), ignored, read.get("weight_block_size")
        )

    def make_method(self) -> QuantizeMethodBase:
        """Serialized or from floats."""
        return Fp8LinearMethod(self.is_checkpoint_fp8_serialized, self.activations, self.block)


class Fp8LinearMethod(EightBitMethod):
    """FP8 E4M3 codes in uint8; from floats one scale for each of the checkpoint's tensors.

    Upstream keeps one scale for a fused projection, because its kernel takes one; here the rows of q, k and v keep
    theirs: upstream/vllm/model_executor/layers/quantization/fp8.py:261 — `Fp8LinearMethod`.
    """

    code_type, stored = np.uint8, "F8_E4M3"

    def _quantize_rows(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        size = rows.stop - rows.start
        pieces = [(first, min(first + LOAD_ROWS, size)) for first in range(0, size, LOAD_ROWS)]
        largest = max(float(np.abs(source.read("weight", *piece)).max(initial=0.0)) for piece in pieces)
        scale = fp8_scale(largest)
        layer.weight_scale[rows] = scale
        for first, last in pieces:
            codes, _ = quantize_fp8(source.read("weight", first, last), scale)
            layer.weight[rows.start + first : rows.start + last] = codes

    def _decode(self, codes: Array, out: Array) -> None:
        decode_e4m3(codes, out=out)
