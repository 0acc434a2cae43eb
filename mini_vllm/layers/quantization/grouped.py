"""A scale for each group of a row's inputs, codes of 4 or 8 bits: int4 made while a float checkpoint loads, and the
method that GPTQ, AWQ and compressed-tensors checkpoints fill in their own ways.

Upstream twins: `compressed_tensors/schemes/compressed_tensors_wNa16.py`, `auto_gptq.py`, `awq.py` under
`vllm/model_executor/layers/quantization/`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.base_config import QuantizeMethodBase
from mini_vllm.layers.quantization.checkpoint_keys import INT4
from mini_vllm.layers.quantization.online import OnlineConfig
from mini_vllm.layers.quantization.primitives import (
    INT4_MAX,
    INT4_OFFSET,
    LOAD_ROWS,
    check_group_size,
    check_pairs,
    check_setting,
    decode_pairs,
    pack_int4,
    pack_nibbles,
    scale_for,
    unpack_nibbles,
)
from mini_vllm.layers.utils import multiply_in_blocks
from mini_vllm.parameter import TensorSource
from mini_vllm.utils.arrays import Array

_SIGNED = tuple(float(code - INT4_OFFSET) for code in range(16))
_UNSIGNED = tuple(float(code) for code in range(16))


class Int4Config(OnlineConfig):
    """int4, a float16 scale for each `group_size` inputs of a row (-1: the whole row)."""

    name, keys = "int4", INT4

    def __init__(self, group_size: int = 128, ignored_layers: list[str] | None = None) -> None:
        super().__init__(ignored_layers)
        self.group_size = group_size

    def make_method(self) -> QuantizeMethodBase:
        """Weights only."""
        return Int4GroupLinearMethod(self.group_size)


class GroupedLinearMethod(QuantizeMethodBase):
    """`weight_packed`, 4-bit codes two a byte [out, in / 2] or 8-bit ones [out, in]; `weight_scale` [out, groups].

    `weight_zero_point` [out, groups], uint8, is there for asymmetric weights; symmetric codes have the fixed zero point
    2^(bits - 1). Where groups are not consecutive inputs (`desc_act`), the inputs are sorted by group once, and
    `perm` [in] says where each comes from. `g_idx` [in]: see `take_part`.
    """

    def __init__(self, group_size: int = 128, bits: int = 4, symmetric: bool = True) -> None:
        if bits not in (4, 8):
            raise ValueError(f"grouped weights must have 4 or 8 bits, got {bits}")
        self.group_size, self.bits, self.symmetric = group_size, bits, symmetric

    def create_weights(
        self, layer: LinearWeights, input_size: int, output_partition_sizes: list[int], dtype: Any
    ) -> None:
        """Upstream: upstream/vllm/model_executor/layers/quantization/auto_gptq.py:322 —
        `AutoGPTQLinearMethod.create_weights`."""
        rows = sum(output_partition_sizes)
        layer.group_size = check_group_size(input_size, self.group_size, f" of {layer.prefix}")
        groups = input_size // layer.group_size
        layer.weight_packed = np.empty((rows, input_size * self.bits // 8), np.uint8)
        layer.weight_scale = np.empty((rows, groups), np.float16)
        layer.weight_zero_point = None if self.symmetric else np.empty((rows, groups), np.uint8)
        layer.perm = layer.g_idx = None

    def check_part(self, layer: LinearWeights) -> None:
        """4-bit codes lie two in a byte."""
        if self.bits == 4:
            check_pairs(layer, layer.in_features)

    def take_part(self, layer: LinearWeights, whole: LinearWeights, rows: Array, columns: slice) -> None:
        """Rows, and columns in the order of their groups. Where the groups of this rank's inputs are not whole, `g_idx`
        names the group of each one, as upstream's kernels have it; all scales are kept then."""
        self.check_part(layer)
        order = np.arange(whole.in_features) if whole.perm is None else whole.perm
        mine = np.flatnonzero((order >= columns.start) & (order < columns.stop))  # places in the order of the groups
        codes = whole.weight_packed[rows]
        if len(mine) < whole.in_features:
            codes = self.reorder(codes, mine)
        layer.weight_packed, layer.group_size = np.ascontiguousarray(codes), whole.group_size
        layer.perm = None if whole.perm is None else order[mine] - columns.start
        groups, is_whole = mine // whole.group_size, len(mine) % whole.group_size == 0
        layer.g_idx, kept = groups, np.arange(whole.weight_scale.shape[1])
        if is_whole and (groups.reshape(-1, whole.group_size) == groups[:: whole.group_size, None]).all():
            layer.g_idx, kept = None, groups[:: whole.group_size]
        zeros = whole.weight_zero_point
        layer.weight_scale = whole.weight_scale[np.ix_(rows, kept)]
        layer.weight_zero_point = None if zeros is None else zeros[np.ix_(rows, kept)]

    def apply(self, layer: LinearWeights, x: Array, out: Array) -> None:
        """Dequantized in blocks of rows.

        Upstream: upstream/vllm/model_executor/layers/quantization/awq.py:262 — `AWQLinearMethod.apply` — dequantizes
        the whole matrix where there are 256 tokens or more.
        """
        if layer.perm is not None:
            x = x[layer.perm]
        multiply_in_blocks(layer, x, out, lambda rows, block: self._fill(layer, rows, block))

    def _fill(self, layer: LinearWeights, rows: slice, out: Array) -> None:
        """Floats of these rows, inputs in the order of their groups."""
        codes, zeros = layer.weight_packed[rows], layer.weight_zero_point
        if self.bits == 8:
            np.copyto(out, codes)
        else:
            decode_pairs(codes, _SIGNED if zeros is None else _UNSIGNED, out)
        if zeros is None and self.bits == 8:
            out -= out.dtype.type(128)
        if layer.g_idx is not None:
            if zeros is not None:
                out -= zeros[rows][:, layer.g_idx].astype(out.dtype)
            out *= layer.weight_scale[rows][:, layer.g_idx].astype(out.dtype)
            return
        groups = out.reshape(len(out), -1, layer.group_size)
        if zeros is not None:
            groups -= zeros[rows, :, None].astype(out.dtype)
        groups *= layer.weight_scale[rows, :, None].astype(out.dtype)

    def dequantize_rows(self, layer: LinearWeights, rows: slice, out: Array) -> None:
        """Inputs in the order of the checkpoint."""
        if layer.perm is None:
            return self._fill(layer, rows, out)
        ordered = np.empty_like(out)
        self._fill(layer, rows, ordered)
        out[:, layer.perm] = ordered

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """Checkpoint layouts fill `weight_packed` in their own ways."""
        raise NotImplementedError

    @staticmethod
    def store_scales(layer: LinearWeights, rows: slice, scales: Array) -> None:
        """float16 stays float16; what a checkpoint holds in more bits (bf16 among them) is kept as float32."""
        if scales.dtype != np.float16 and layer.weight_scale.dtype == np.float16:
            layer.weight_scale = layer.weight_scale.astype(np.float32)
        target = layer.weight_scale[rows]
        if scales.shape != target.shape:
            raise ValueError(f"{layer.prefix}: scales have shape {scales.shape}, expected {target.shape}")
        target[...] = scales

    def reorder(self, packed: Array, order: Array) -> Array:
        """Packed rows with their inputs in this order."""
        if self.bits == 8:
            return packed[:, order]
        return pack_nibbles(unpack_nibbles(packed)[:, order])

    @staticmethod
    def input_order(layer: LinearWeights, g_idx: Array) -> Array:
        """Inputs sorted by group; one order for all shards of a fused projection, since they share the input.

        Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:689 — `sort_weights`.
        """
        counts = np.bincount(g_idx, minlength=layer.in_features // layer.group_size)
        if (counts != layer.group_size).any():
            raise ValueError(f"{layer.prefix}: g_idx must name each group {layer.group_size} times")
        order = np.argsort(g_idx, kind="stable")
        if layer.perm is None:
            layer.perm = order
        elif (layer.perm != order).any():
            raise ValueError(f"{layer.prefix}: the g_idx of its shards differ, which a fused projection cannot have")
        return order


class Int4GroupLinearMethod(GroupedLinearMethod):
    """Symmetric int4, -7 to 7, made from floats while they are read; scales are stored as float16.

    Upstream makes no int4 from floats; such weights come from a calibrated checkpoint.
    """

    def __init__(self, group_size: int = 128) -> None:
        super().__init__(group_size)

    def create_weights(
        self, layer: LinearWeights, input_size: int, output_partition_sizes: list[int], dtype: Any
    ) -> None:
        """Here the user chose the size of a group, so the error says how to choose another."""
        check_setting("group_size", self.group_size, input_size, layer.prefix)
        super().create_weights(layer, input_size, output_partition_sizes, dtype)

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """Codes are rounded against the float16 scale, so that it adds no error of its own."""
        for first in range(0, rows.stop - rows.start, LOAD_ROWS):
            last = min(first + LOAD_ROWS, rows.stop - rows.start)
            groups = source.read("weight", first, last).astype(np.float32).reshape(last - first, -1, layer.group_size)
            scales = scale_for(np.abs(groups).max(axis=2), INT4_MAX).astype(np.float16)
            scales = np.maximum(scales, np.finfo(np.float16).smallest_subnormal)
            codes = np.clip(np.rint(groups / scales[:, :, None].astype(np.float32)), -INT4_MAX, INT4_MAX)
            to = slice(rows.start + first, rows.start + last)
            layer.weight_packed[to] = pack_int4(codes.astype(np.int8).reshape(last - first, -1))
            layer.weight_scale[to] = scales
