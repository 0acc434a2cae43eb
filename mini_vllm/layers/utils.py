"""Products with a weight: as floats, or decoded a few rows at a time.

Upstream twin: `vllm/model_executor/layers/utils.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.layers.quantization.base_config import QuantizeMethodBase
from mini_vllm.platforms.cpu.products import project
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.layers.linear_weights import LinearWeights
    from mini_vllm.parameter import TensorSource

SCRATCH_BYTES = 1 << 18
"""Weights that are dequantized at a time: they are multiplied while they are still in the processor's cache."""


class UnquantizedLinearMethod(QuantizeMethodBase):
    """The weight as floats.

    Upstream: upstream/vllm/model_executor/layers/linear.py:182 — `UnquantizedLinearMethod`.
    """

    def create_weights(
        self, layer: LinearWeights, input_size: int, output_partition_sizes: list[int], dtype: Any
    ) -> None:
        """`weight` [out, in]."""
        layer.weight = layer.context.new(sum(output_partition_sizes), input_size)

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """Copies, and converts."""
        layer.weight[rows] = source.read("weight")

    def apply(self, layer: LinearWeights, x: Array, out: Array) -> None:
        """One product."""
        project(layer.weight, x, out)

    def dequantize_rows(self, layer: LinearWeights, rows: slice, out: Array) -> None:
        """A copy."""
        np.copyto(out, layer.weight[rows])


def row_blocks(layer: LinearWeights) -> Iterable[slice]:
    """The rows of a weight in pieces of about `SCRATCH_BYTES`."""
    step = max(8, SCRATCH_BYTES // (layer.in_features * layer.dtype.itemsize))
    for first in range(0, layer.out_features, step):
        yield slice(first, min(first + step, layer.out_features))


def multiply_in_blocks(layer: LinearWeights, x: Array, out: Array, fill: Any) -> None:
    """`out = weight @ x`, a few rows at a time: `fill(rows, block)` writes the floats of these rows into block.

    The only floats that exist are those of one block. (A GPU kernel does the same in registers.)
    """
    scratch: Array | None = None
    for rows in row_blocks(layer):
        if scratch is None:
            scratch = np.empty((rows.stop, layer.in_features), layer.dtype)
        block = scratch[: rows.stop - rows.start]
        fill(rows, block)
        project(block, x, out[rows])
