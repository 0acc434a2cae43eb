"""One byte a weight, with a scale for each output row or block: what int8 (`int8.py`) and FP8 (`fp8.py`) share.

Codes become floats a few rows at a time, unscaled; the products are scaled afterwards, once per output. With a scheme
for activations (W8A8) the input is rounded as well, and its scale joins the one of the row at the end.

Under a `RowParallelLinear` a rank has a share of the inputs, and rounds what it has: a token's dynamic scale is that of
the share, as upstream, where the method gets the rank's input too (upstream/vllm/model_executor/layers/linear.py:1556 —
calls `self.quant_method.apply`). So W8A8 with two ranks is near one rank, not equal to it. Static scales, and those of
blocks, do not depend on the ranks; nor do the weights' own, which upstream finds for each rank's part anew where it
makes FP8 from floats.
Upstream twins: `compressed_tensors/schemes/compressed_tensors_w8a8_int8.py`, `…_w8a8_fp8.py`, `fp8.py`, under
`vllm/model_executor/layers/quantization/`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.activations import ActivationScheme, quantize_activations
from mini_vllm.layers.quantization.base_config import QuantizeMethodBase
from mini_vllm.layers.quantization.primitives import LOAD_ROWS
from mini_vllm.layers.quantization.utils.fp8_utils import (
    validate_fp8_block_shape,
)
from mini_vllm.layers.utils import multiply_in_blocks
from mini_vllm.parameter import TensorSource
from mini_vllm.utils.arrays import Array


class EightBitMethod(QuantizeMethodBase):
    """Codes `weight` [out, in] of one byte, and `weight_scale` [out, 1], or [out, in / block] for 2D blocks.

    Args:
        serialized: the checkpoint holds codes and scales; otherwise floats, which are quantized while they are read.
        activations: also round the input; None: weights only.
        block: rows and columns that share a scale, of a serialized checkpoint; None: a scale per row or per tensor.
    """

    code_type: Any
    stored: str
    """`code_type` as a checkpoint names it."""
    scale_names = ("weight_scale", "weight_scale_inv")

    def __init__(
        self,
        serialized: bool = False,
        activations: ActivationScheme | None = None,
        block: tuple[int, int] | None = None,
    ) -> None:
        self.serialized, self.activations, self.block = serialized, activations, block
        self.tensor_names = ("weight", *self.scale_names, "input_scale") if serialized else ("weight",)

    def create_weights(
        self, layer: LinearWeights, input_size: int, output_partition_sizes: list[int], dtype: Any
    ) -> None:
        """Upstream: upstream/vllm/model_executor/layers/quantization/fp8.py:316 — `Fp8LinearMethod.create_weights`."""
        rows = sum(output_partition_sizes)
        if self.block is not None and input_size % self.block[1]:
            raise ValueError(f"the {input_size} inputs of {layer.prefix} must divide by the block's {self.block[1]}")
        layer.weight = np.empty((rows, input_size), self.code_type)
        per_row = 1 if self.block is None else input_size // self.block[1]
        layer.weight_scale = np.empty((rows, per_row), np.float32)
        layer.input_scale = 0.0

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """Codes and scales as they are, or floats that are quantized in blocks of rows."""
        if not self.serialized:
            return self._quantize_rows(layer, rows, source)
        weight = layer.weight[rows]
        if source.shape("weight") != weight.shape:
            raise ValueError(f"{layer.prefix}: weight has shape {source.shape('weight')}, expected {weight.shape}")
        for first in range(0, len(weight), LOAD_ROWS):
            codes = source.read_stored("weight", (self.stored,), first, first + LOAD_ROWS)
            if codes.dtype != self.code_type:
                raise ValueError(f"{layer.prefix}: weight is {codes.dtype}, expected {np.dtype(self.code_type)} codes")
            weight[first : first + LOAD_ROWS] = codes
        self._read_scales(layer, rows, source)

    def _read_scales(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        name = next((name for name in self.scale_names if name in source.names()), self.scale_names[0])
        scales = np.asarray(source.read(name))
        target = layer.weight_scale[rows]
        if self.block is not None:
            scales = np.repeat(scales, self.block[0], axis=0)[: len(target)]
        elif scales.size == len(target):
            scales = scales.reshape(-1, 1)
        if scales.size != 1 and scales.shape != target.shape:
            raise ValueError(f"{layer.prefix}: {name} has shape {scales.shape}, expected {target.shape} or one number")
        target[...] = scales.reshape(-1)[0] if scales.size == 1 else scales
        if self.activations is not None and self.activations.static:
            # A fused projection rounds its one input once: upstream takes the greatest scale of the shards as well.
            layer.input_scale = max(layer.input_scale, float(np.max(source.read("input_scale"))))

    def _quantize_rows(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        raise NotImplementedError

    def check_part(self, layer: LinearWeights) -> None:
        """A cut that upstream refuses goes through a 2D block."""
        if self.block is not None:
            validate_fp8_block_shape(layer, self.block)

    def take_part(self, layer: LinearWeights, whole: LinearWeights, rows: Array, columns: slice) -> None:
        """Rows and columns of the codes, and their scales."""
        self.check_part(layer)
        layer.weight, layer.input_scale = np.ascontiguousarray(whole.weight[rows, columns]), whole.input_scale
        layer.weight_scale = whole.weight_scale[rows]
        if self.block is not None:
            layer.weight_scale = layer.weight_scale[:, columns.start // self.block[1] : columns.stop // self.block[1]]

    def apply(self, layer: LinearWeights, x: Array, out: Array) -> None:
        """Codes times input in blocks of rows, then the scales.

        Upstream: upstream/vllm/model_executor/layers/quantization/fp8.py:437 — `Fp8LinearMethod.apply`.
        """
        scale: Any = 1.0
        if self.activations is not None:
            x, scale = quantize_activations(x, self.activations, layer.input_scale)
        by_row = self.block is None
        multiply_in_blocks(layer, x, out, lambda rows, block: self._fill(layer, rows, block, scaled=not by_row))
        if by_row:
            out *= layer.weight_scale
        if self.activations is not None:
            out *= scale

    def _fill(self, layer: LinearWeights, rows: slice, out: Array, scaled: bool) -> None:
        self._decode(layer.weight[rows], out)
        if not scaled:
            return
        scale = layer.weight_scale[rows]
        if self.block is not None:
            scale = np.repeat(scale, self.block[1], axis=1)
        out *= scale

    def _decode(self, codes: Array, out: Array) -> None:
        np.copyto(out, codes)

    def dequantize_rows(self, layer: LinearWeights, rows: slice, out: Array) -> None:
        """Codes times scales."""
        self._fill(layer, rows, out, scaled=True)
