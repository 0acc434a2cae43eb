"""NF4, the four-bit code of QLoRA: sixteen levels where a normal distribution has its mass, one scale a block.

The levels are quantiles of a normal distribution: close together around 0, where most weights are, and far apart at the
ends; 0 and both ends are levels. A block of 64 consecutive weights is divided by its largest magnitude, and each weight
takes the nearest level.
Storage is that of bitsandbytes: two codes a byte, the first in the upper half.
Upstream loads it through the bitsandbytes library:
upstream/vllm/model_executor/layers/quantization/bitsandbytes.py:195 — `BitsAndBytesLinearMethod`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.base_config import QuantizeMethodBase
from mini_vllm.layers.quantization.checkpoint_keys import NF4
from mini_vllm.layers.quantization.online import OnlineConfig
from mini_vllm.layers.quantization.primitives import LOAD_ROWS, check_pairs, check_setting, decode_pairs
from mini_vllm.layers.utils import multiply_in_blocks
from mini_vllm.parameter import TensorSource
from mini_vllm.utils.arrays import Array

NF4_LEVELS: Array = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
_MIDDLES = (NF4_LEVELS[1:].astype(np.float64) + NF4_LEVELS[:-1]) / 2
NF4_BLOCK = 64
DOUBLE_QUANT_BLOCK = 256
"""Scales that share one second-level scale."""


def quantize_nf4(W: Array, block_size: int = NF4_BLOCK) -> tuple[Array, Array]:
    """Codes 0..15 [out, in], uint8, and the largest magnitude of each block, float32 [out, in / block_size].

    Raises:
        ValueError: blocks do not divide a row evenly (bitsandbytes lets a block run over the end of a row).
    """
    if block_size < 2 or W.shape[1] % block_size:
        raise ValueError(f"block_size must divide the {W.shape[1]} inputs evenly, got {block_size}")
    blocks = W.astype(np.float32).reshape(len(W), -1, block_size)
    absmax = np.abs(blocks).max(axis=2)
    normed = blocks * (1 / np.where(absmax > 0, absmax, np.float32(1)))[:, :, None]
    codes = np.searchsorted(_MIDDLES, normed.reshape(-1)).astype(np.uint8)
    return codes.reshape(W.shape), absmax


def dequantize_nf4(codes: Array, absmax: Array) -> Array:
    """`level * absmax`, float32 [out, in]. codes as from `quantize_nf4`."""
    blocks = NF4_LEVELS[codes].reshape(*absmax.shape, -1)
    return (blocks * absmax[:, :, None]).reshape(codes.shape)


def pack_nf4(codes: Array) -> Array:
    """Codes [..., n] -> uint8 [..., n / 2], the first of a pair in the upper half."""
    return (codes[..., 0::2] << 4) | codes[..., 1::2]


def _dynamic_levels() -> Array:
    """The 256 levels of the 8-bit "dynamic" code: a sign, a power of ten in unary, and the rest a linear fraction."""
    levels = [0.0, 1.0]
    for i in range(7):
        ends = np.linspace(0.1, 1, 2**i + 1)
        middles = (ends[:-1] + ends[1:]) / 2
        levels += [*(10.0 ** (i - 6) * middles), *(-(10.0 ** (i - 6)) * middles)]
    return np.sort(np.array(levels, np.float32))


DYNAMIC_LEVELS: Array = _dynamic_levels()


def quantize_scales(absmax: Array) -> tuple[Array, Array, float]:
    """Double quantization: the scales themselves in 8 bits, 256 to a block, after their mean is taken off.

    Saves 32 - 8 - 32 / 256 bits in 64 weights: 0.37 bits a weight.

    Returns:
        codes, uint8 of the shape of absmax; a float32 scale for each 256 of them; the mean.
    """
    offset = float(absmax.mean(dtype=np.float32))
    flat = (absmax - np.float32(offset)).reshape(-1)
    blocks = np.pad(flat, (0, -len(flat) % DOUBLE_QUANT_BLOCK)).reshape(-1, DOUBLE_QUANT_BLOCK)
    scales = np.abs(blocks).max(axis=1)
    normed = (blocks * (1 / np.where(scales > 0, scales, np.float32(1)))[:, None]).reshape(-1)[: len(flat)]
    middles = (DYNAMIC_LEVELS[1:].astype(np.float64) + DYNAMIC_LEVELS[:-1]) / 2
    return np.searchsorted(middles, normed).astype(np.uint8).reshape(absmax.shape), scales, offset


def dequantize_scales(codes: Array, scales: Array, offset: float, first: int = 0) -> Array:
    """The scales again, float32 of the shape of codes; `first` is the place of codes[0, 0] in the whole array."""
    which = (first + np.arange(codes.size)) // DOUBLE_QUANT_BLOCK
    return DYNAMIC_LEVELS[codes] * scales[which].reshape(codes.shape) + np.float32(offset)


class Nf4Config(OnlineConfig):
    """NF4 in blocks of 64; `double_quant` stores their scales in 8 bits."""

    name, keys = "nf4", NF4

    def __init__(
        self, block_size: int = NF4_BLOCK, double_quant: bool = False, ignored_layers: list[str] | None = None
    ) -> None:
        super().__init__(ignored_layers)
        self.block_size, self.double_quant = block_size, double_quant

    def make_method(self) -> QuantizeMethodBase:
        """Weights only."""
        return Nf4LinearMethod(self.block_size, self.double_quant)


class Nf4LinearMethod(QuantizeMethodBase):
    """NF4 codes two a byte, and the largest magnitude of each block of 64 weights.

    With `double_quant` these are kept in 8 bits each, with one float32 for 256 of them.
    """

    def __init__(self, block_size: int = NF4_BLOCK, double_quant: bool = False) -> None:
        self.block_size, self.double_quant = block_size, double_quant

    def create_weights(
        self, layer: LinearWeights, input_size: int, output_partition_sizes: list[int], dtype: Any
    ) -> None:
        """`weight_packed` [out, in / 2], `absmax` [out, in / block_size]."""
        rows = sum(output_partition_sizes)
        check_setting("block_size", self.block_size, input_size, layer.prefix)
        layer.group_size = self.block_size if self.block_size != -1 else input_size
        layer.weight_packed = np.empty((rows, input_size // 2), np.uint8)
        layer.absmax = np.empty((rows, input_size // layer.group_size), np.float32)
        layer.absmax_scale = None

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """Floats, quantized while they are read."""
        for first in range(0, rows.stop - rows.start, LOAD_ROWS):
            last = min(first + LOAD_ROWS, rows.stop - rows.start)
            codes, absmax = quantize_nf4(source.read("weight", first, last), layer.group_size)
            layer.weight_packed[rows.start + first : rows.start + last] = pack_nf4(codes)
            layer.absmax[rows.start + first : rows.start + last] = absmax

    def process_weights_after_loading(self, layer: LinearWeights) -> None:
        """Double quantization needs all the scales: it takes off their mean."""
        if self.double_quant and layer.absmax.dtype == np.float32:
            layer.absmax, layer.absmax_scale, layer.absmax_offset = quantize_scales(layer.absmax)

    def check_part(self, layer: LinearWeights) -> None:
        """Codes lie two in a byte, of a block that a cut makes smaller too."""
        check_pairs(layer, self._block_of_part(layer.input_size, layer.columns))

    def _block_of_part(self, inputs: int, columns: slice) -> int:
        return math.gcd(inputs if self.block_size == -1 else self.block_size, columns.start, columns.stop)

    def take_part(self, layer: LinearWeights, whole: LinearWeights, rows: Array, columns: slice) -> None:
        """Rows and columns of the codes. The scales become floats again, where they were quantized themselves, and are
        repeated for smaller blocks, where the cut divides one: levels and scales stay those of one rank. Upstream cuts
        the floats first and quantizes each part by itself, scales included:
        upstream/vllm/model_executor/model_loader/bitsandbytes_loader.py:436 — "compress_statistics=True"."""
        self.check_part(layer)
        absmax, size = whole.absmax, self._block_of_part(whole.in_features, columns)
        if self.double_quant:
            absmax = dequantize_scales(absmax, whole.absmax_scale, whole.absmax_offset)
        layer.group_size, layer.absmax_scale = size, None
        layer.weight_packed = np.ascontiguousarray(whole.weight_packed[rows, columns.start // 2 : columns.stop // 2])
        absmax = np.repeat(absmax[rows], whole.group_size // size, axis=1)
        layer.absmax = absmax[:, columns.start // size : columns.stop // size]

    def apply(self, layer: LinearWeights, x: Array, out: Array) -> None:
        """Dequantized in blocks of rows."""
        multiply_in_blocks(layer, x, out, lambda rows, block: self.dequantize_rows(layer, rows, block))

    def dequantize_rows(self, layer: LinearWeights, rows: slice, out: Array) -> None:
        """Level times scale."""
        decode_pairs(layer.weight_packed[rows], tuple(NF4_LEVELS.tolist()), out, first_is_low=False)
        scales = layer.absmax[rows]
        if layer.absmax_scale is not None:
            first = rows.start * layer.absmax.shape[1]
            scales = dequantize_scales(scales, layer.absmax_scale, layer.absmax_offset, first)
        blocks = out.reshape(len(out), -1, layer.group_size)
        blocks *= scales[:, :, None].astype(out.dtype)
