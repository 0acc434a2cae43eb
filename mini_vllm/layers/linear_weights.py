"""The weight of a projection: which rows and columns this process holds, how they are stored, how they are loaded.

Upstream twin: `vllm/model_executor/layers/linear.py` (`LinearBase`, and the `weight_loader` of its subclasses).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.module import Module
from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase, shard_names
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.parameter import ArraySource, Shard, TensorSource, part_of
from mini_vllm.utils.arrays import Array


class LinearWeights(Module):
    """A weight [out, in], and perhaps a bias, that is stored as `quant_method` says; here the whole of it.

    Args:
        quant_config: picks the method; None: floats.
        prefix: name of the layer; the tensors of a checkpoint have the names that `shard_names` gives.
        partitions: rows of each of the checkpoint's tensors that are stacked here; None: one tensor.
        dtype: of x and y.
        bias: whether there is one.
        context: of the model; it brings dtype and quant_config. None: a layer by itself.

    Attributes:
        is_one_tensor: the checkpoint has what is stacked here as one tensor, under the layer's own name.
        input_size, output_size, output_sizes: before ranks share it; in_features, out_features, partitions: here.

    Raises:
        ValueError: the config has no method for this layer; the ranks do not divide it.

    Upstream: upstream/vllm/model_executor/layers/linear.py:231 — `LinearBase`.
    """

    is_one_tensor = False

    if TYPE_CHECKING:  # the arrays are attributes that the method sets

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(
        self, input_size: int, output_size: int, quant_config: QuantizationConfig | None = None, prefix: str = "",
        *, partitions: list[int] | None = None, dtype: Any = "float32", bias: bool = False,
        context: ModelContext | None = None,
    ) -> None:  # fmt: skip
        self.context = context = context or ModelContext(np.dtype(dtype), quant_config)
        self.input_size, self.output_size, self.prefix, self.dtype = input_size, output_size, prefix, context.dtype
        self.output_sizes = partitions or [output_size]
        if sum(self.output_sizes) != output_size:
            raise ValueError(f"partitions of {prefix!r} must sum to {output_size}, got {self.output_sizes}")
        self.rows = [self.rows_here(index) for index in range(len(self.output_sizes))]
        self.columns = self.columns_here()
        self.partitions = [rows.stop - rows.start for rows in self.rows]
        self.in_features, self.out_features = self.columns.stop - self.columns.start, sum(self.partitions)
        self.shape = (self.out_features, self.in_features)
        self.quant_method: QuantizeMethodBase = _method_for(context.quant_config, prefix)
        self._whole: LinearWeights | None = None
        self._rows_to_load = output_size
        if not self.is_cut or self.is_unquantized:
            self.quant_method.create_weights(self, self.in_features, self.partitions, self.dtype)
        self.bias = context.new(self.out_features) if bias else None
        context.layers.append(self)

    def rows_here(self, index: int) -> slice:
        """Rows of the checkpoint's tensor `index` that this rank holds."""
        return slice(0, self.output_sizes[index])

    def columns_here(self) -> slice:
        """Columns that this rank holds."""
        return slice(0, self.input_size)

    @property
    def is_unquantized(self) -> bool:
        """Whether `weight` holds floats."""
        return isinstance(self.quant_method, UnquantizedLinearMethod)

    @property
    def is_cut(self) -> bool:
        """Whether this rank holds but a part."""
        return self.shape != (self.output_size, self.input_size)

    @property
    def size(self) -> int:
        """Weights on this rank."""
        return self.out_features * self.in_features + (0 if self.bias is None else self.bias.size)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Weight and bias of each of the checkpoint's projections.

        Upstream: upstream/vllm/model_executor/layers/linear.py:533 — `ColumnParallelLinear.weight_loader`.
        """
        if self.is_one_tensor:
            yield from self._weights_of_one_tensor()
            return
        first = start = 0
        for name, rows, whole in zip(shard_names(self.prefix), self.rows, self.output_sizes, strict=True):
            here = slice(start, start + rows.stop - rows.start)
            if self.is_unquantized:
                yield f"{name}.weight", part_of(self.weight[here], (whole, self.input_size), (rows, self.columns))
            else:
                yield f"{name}.weight", Shard(self, slice(first, first + whole))
            if self.bias is not None:
                yield f"{name}.bias", part_of(self.bias[here], (whole,), (rows,))
            first, start = first + whole, here.stop

    def _weights_of_one_tensor(self) -> Iterator[tuple[str, Any]]:
        """The parts that this rank holds of each of the projections in it. A quantized one has no bias."""
        if not self.is_unquantized:
            yield f"{self.prefix}.weight", Shard(self, slice(0, self.output_size))
            return
        first = start = 0
        for rows, whole in zip(self.rows, self.output_sizes, strict=True):
            here, there = slice(start, start + rows.stop - rows.start), slice(first + rows.start, first + rows.stop)
            shape = self.output_size, self.input_size
            yield f"{self.prefix}.weight", part_of(self.weight[here], shape, (there, self.columns))
            if self.bias is not None:
                yield f"{self.prefix}.bias", part_of(self.bias[here], (self.output_size,), (there,))
            first, start = first + whole, here.stop

    def __len__(self) -> int:
        return self.out_features

    def __getitem__(self, rows: slice) -> Shard:
        """A place to load some of the (whole weight's) rows into."""
        return Shard(self, slice(*rows.indices(self.output_size)[:2]))

    def load_rows(self, rows: slice, source: TensorSource) -> None:
        """Fill some rows. Of a quantized weight that ranks share, the whole is made first, and then cut: its scales
        are those of one rank, and so are its tokens. It is given back before the next layer's turn."""
        if not self.is_cut:
            return self.quant_method.load_shard(self, rows, source)
        if self._whole is None:
            self._whole = LinearWeights(
                self.input_size, self.output_size, self.context.quant_config, self.prefix,
                partitions=self.output_sizes, dtype=self.dtype,
            )  # fmt: skip
        self._whole.load_rows(rows, source)
        self._rows_to_load -= rows.stop - rows.start
        if self._rows_to_load == 0:
            whole, self._whole = self._whole, None
            whole.process_weights_after_loading()
            starts = np.cumsum([0, *self.output_sizes[:-1]])
            kept = [np.arange(r.start, r.stop) + start for r, start in zip(self.rows, starts, strict=True)]
            self.quant_method.take_part(self, whole, np.concatenate(kept), self.columns)

    def load(self, W: Array) -> LinearWeights:
        """Store a float weight [out, in]; the way to try a method without a checkpoint."""
        if W.shape != (self.output_size, self.input_size):
            raise ValueError(f"weight must have shape {(self.output_size, self.input_size)}, got {W.shape}")
        first = 0
        for size in self.output_sizes:
            self[first : first + size].load(ArraySource({"weight": W[first : first + size]}))
            first += size
        self.process_weights_after_loading()
        return self

    def process_weights_after_loading(self) -> None:
        """Once, when all shards are in."""
        if not self.is_cut:
            self.quant_method.process_weights_after_loading(self)

    def dequantized(self) -> Array:
        """The whole weight as floats [out, in]. Only tests and tables want this: it is what quantization avoids."""
        out = np.empty(self.shape, self.dtype)
        self.quant_method.dequantize_rows(self, slice(0, self.out_features), out)
        return out


def _method_for(quant_config: QuantizationConfig | None, prefix: str) -> QuantizeMethodBase:
    method = UnquantizedLinearMethod() if quant_config is None else quant_config.get_quant_method(prefix, "linear")
    if method is None:
        raise ValueError(f"all linear layers should support quant method; none for {prefix!r}")
    return method
