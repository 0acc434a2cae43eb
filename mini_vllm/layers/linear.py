"""A projection of a model, stored in whatever way its method likes, and where its tensors come from.

Upstream twin: `vllm/model_executor/layers/linear.py` (`LinearBase`, `UnquantizedLinearMethod`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from mini_vllm.platforms.cpu.products import project
from mini_vllm.utils.arrays import Array

SCRATCH_BYTES = 1 << 18
"""Weights that are dequantized at a time: they are multiplied while they are still in the processor's cache."""


class TensorSource(Protocol):
    """The tensors of one projection of a checkpoint, by the last part of their names ("weight", "scales", …)."""

    def names(self) -> set[str]:
        """Those that are there."""

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored."""

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Rows first to last: floats as float32 or wider, integers as stored, FP8 as uint8 codes."""


class ArraySource:
    """Tensors that are in memory."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = tensors

    def names(self) -> set[str]:
        """Those that are there."""
        return set(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """As given."""
        return self.tensors[name].shape

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Rows first to last."""
        tensor = self.tensors[name]
        return tensor[first:last] if tensor.ndim else tensor


class UnquantizedLinearMethod(QuantizeMethodBase):
    """The weight as floats.

    Upstream: upstream/vllm/model_executor/layers/linear.py:182 — `UnquantizedLinearMethod`.
    """

    def create_weights(self, layer: Linear, input_size: int, output_partition_sizes: list[int], dtype: Any) -> None:
        """`weight` [out, in]."""
        layer.weight = np.empty((sum(output_partition_sizes), input_size), dtype)

    def load_shard(self, layer: Linear, rows: slice, source: TensorSource) -> None:
        """Copies, and converts."""
        layer.weight[rows] = source.read("weight")

    def apply(self, layer: Linear, x: Array, out: Array) -> None:
        """One product."""
        project(layer.weight, x, out)

    def dequantize_rows(self, layer: Linear, rows: slice, out: Array) -> None:
        """A copy."""
        np.copyto(out, layer.weight[rows])


class Linear:
    """`y = weight @ x` for a weight [out_features, in_features] that is stored as `quant_method` says.

    Args:
        quant_config: picks the method; None: floats.
        prefix: name of the layer in the checkpoint.
        partitions: rows of each of the checkpoint's tensors that are stacked here; None: one tensor.
        dtype: of x and y.

    Raises:
        ValueError: the config has no method for this layer.

    Upstream: upstream/vllm/model_executor/layers/linear.py:231 — `LinearBase`.
    """

    if TYPE_CHECKING:  # the arrays are attributes that the method sets

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(
        self, in_features: int, out_features: int, quant_config: QuantizationConfig | None = None, prefix: str = "",
        *, partitions: list[int] | None = None, dtype: Any = "float32",
    ) -> None:  # fmt: skip
        self.in_features, self.out_features = in_features, out_features
        self.shape, self.size = (out_features, in_features), out_features * in_features
        self.prefix, self.dtype = prefix, np.dtype(dtype)
        self.partitions = partitions or [out_features]
        if sum(self.partitions) != out_features:
            raise ValueError(f"partitions of {prefix!r} must sum to {out_features}, got {self.partitions}")
        method = UnquantizedLinearMethod() if quant_config is None else quant_config.get_quant_method(prefix, "linear")
        if method is None:
            raise ValueError(f"all linear layers should support quant method; none for {prefix!r}")
        self.quant_method: QuantizeMethodBase = method
        self.quant_method.create_weights(self, in_features, self.partitions, self.dtype)

    def __len__(self) -> int:
        return self.out_features

    def __getitem__(self, rows: slice) -> Shard:
        """A place to load some of the rows into; what `weights()` of a model yields."""
        return Shard(self, slice(*rows.indices(self.out_features)[:2]))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of this weight: codes, scales, zero points."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    def load(self, W: Array) -> Linear:
        """Store a float weight [out, in]; the way to try a method without a checkpoint."""
        if W.shape != self.shape:
            raise ValueError(f"weight must have shape {self.shape}, got {W.shape}")
        first = 0
        for size in self.partitions:
            self[first : first + size].load(ArraySource({"weight": W[first : first + size]}))
            first += size
        self.process_weights_after_loading()
        return self

    def process_weights_after_loading(self) -> None:
        """Once, when all shards are in."""
        self.quant_method.process_weights_after_loading(self)

    def project_into(self, x: Array, out: Array) -> None:
        """`out = weight @ x`, as the models call it. x: [in, tokens]; out: [out, tokens]."""
        self.quant_method.apply(self, x, out)

    def __call__(self, x: Array) -> Array:
        """x: [tokens, in] -> [tokens, out]."""
        out = np.empty((self.out_features, len(x)), self.dtype)
        self.quant_method.apply(self, np.ascontiguousarray(x.T, self.dtype), out)
        return np.ascontiguousarray(out.T)

    def dequantized(self) -> Array:
        """The whole weight as floats [out, in]. Only tests and tables want this: it is what quantization avoids."""
        out = np.empty(self.shape, self.dtype)
        self.quant_method.dequantize_rows(self, slice(0, self.out_features), out)
        return out


class Shard:
    """Some rows of a `Linear`, to be loaded from one projection of the checkpoint."""

    def __init__(self, linear: Linear, rows: slice) -> None:
        self.linear, self.rows = linear, rows
        self.shape = (rows.stop - rows.start, linear.in_features)
        self.size = self.shape[0] * self.shape[1]

    def load(self, source: TensorSource) -> None:
        """Fill the rows."""
        self.linear.quant_method.load_shard(self.linear, self.rows, source)

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """What the method reads, e.g. ("qweight", "qzeros", "scales", "g_idx")."""
        return self.linear.quant_method.tensor_names


def row_blocks(layer: Linear) -> Iterable[slice]:
    """The rows of a weight in pieces of about `SCRATCH_BYTES`."""
    step = max(8, SCRATCH_BYTES // (layer.in_features * layer.dtype.itemsize))
    for first in range(0, layer.out_features, step):
        yield slice(first, min(first + step, layer.out_features))


def multiply_in_blocks(layer: Linear, x: Array, out: Array, fill: Any) -> None:
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
