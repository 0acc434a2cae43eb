"""Projections: who holds which rows and columns of a weight, how it is stored, and what is exchanged afterwards.

    ColumnParallelLinear   a rank holds some rows of the weight, which are some of the outputs: nothing is exchanged
    RowParallelLinear      a rank holds some columns, which read those outputs: partial sums, added up over the ranks

Arrays are token-major, `x [T, in] -> [T, out]`; weights are [out, in], as checkpoints store them.
Upstream twin: `vllm/model_executor/layers/linear.py`.
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


class LinearBase(Module):
    """`y = x @ weight.T + bias` for a weight [out, in] that is stored as `quant_method` says; here the whole of it.

    Args:
        quant_config: picks the method; None: floats.
        prefix: name of the layer; the tensors of a checkpoint have the names that `shard_names` gives.
        partitions: rows of each of the checkpoint's tensors that are stacked here; None: one tensor.
        dtype: of x and y.
        bias: whether there is one.
        context: of the model; it brings dtype and quant_config. None: a layer by itself.

    Attributes:
        input_size, output_size, output_sizes: before ranks share it; in_features, out_features, partitions: here.

    Raises:
        ValueError: the config has no method for this layer; the ranks do not divide it.

    Upstream: upstream/vllm/model_executor/layers/linear.py:231 — `LinearBase`.
    """

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
        self._whole: LinearBase | None = None
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
            self._whole = LinearBase(
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

    def load(self, W: Array) -> LinearBase:
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

    def project_into(self, x: Array, out: Array) -> None:
        """`out = weight @ x`, features first. x: [in, tokens]; out: [out, tokens]."""
        self.quant_method.apply(self, x, out)

    def product(self, x: Array) -> Array:
        """`x @ weight.T`. Codes are decoded a few rows at a time and multiplied from the left: see `apply`."""
        if self.is_unquantized:
            return x @ self.weight.T
        out = np.empty((self.out_features, len(x)), self.dtype)
        self.quant_method.apply(self, np.ascontiguousarray(x.T, self.dtype), out)
        return np.ascontiguousarray(out.T)

    def forward(self, x: Array) -> Array:
        """x: [tokens, in] -> [tokens, out]."""
        y = self.product(x)
        return y if self.bias is None else y + self.bias

    def dequantized(self) -> Array:
        """The whole weight as floats [out, in]. Only tests and tables want this: it is what quantization avoids."""
        out = np.empty(self.shape, self.dtype)
        self.quant_method.dequantize_rows(self, slice(0, self.out_features), out)
        return out


class ReplicatedLinear(LinearBase):
    """The same weight on every rank.

    Upstream: upstream/vllm/model_executor/layers/linear.py:292 — `ReplicatedLinear`.
    """


Linear = ReplicatedLinear
"""Its former name."""


class ColumnParallelLinear(LinearBase):
    """A rank holds some of the outputs.

    Args:
        output_sizes: rows of each of the checkpoint's tensors that are stacked here.

    Upstream: upstream/vllm/model_executor/layers/linear.py:410 — `ColumnParallelLinear`.
    """

    def __init__(
        self, input_size: int, output_sizes: list[int], bias: bool, context: ModelContext, prefix: str
    ) -> None:
        super().__init__(
            input_size, sum(output_sizes), prefix=prefix, partitions=output_sizes, bias=bias, context=context
        )

    def rows_here(self, index: int) -> slice:
        """This rank's share of each tensor."""
        return self.context.share(self.output_sizes[index], f"the outputs of {self.prefix}")


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several projections of one input in one product: gate and up.

    Upstream: upstream/vllm/model_executor/layers/linear.py:607 — `MergedColumnParallelLinear`.
    """


class QKVParallelLinear(ColumnParallelLinear):
    """q, k and v in one product. Query heads are shared; KV heads too, or repeated where there are more ranks.

    Attributes:
        num_heads, num_kv_heads: on this rank.

    Upstream: upstream/vllm/model_executor/layers/linear.py:975 — `QKVParallelLinear`.
    """

    def __init__(
        self, hidden_size: int, head_size: int, total_num_heads: int, total_num_kv_heads: int, bias: bool,
        context: ModelContext, prefix: str,
    ) -> None:  # fmt: skip
        self.head_size, ranks = head_size, context.tp_size
        self.num_heads = context.divide(total_num_heads, "num_heads of the model")
        self.num_kv_head_replicas = max(1, ranks // total_num_kv_heads)
        if ranks >= total_num_kv_heads and ranks % total_num_kv_heads:
            raise ValueError(
                f"tensor_parallel_size must be a multiple or a divisor of num_kv_heads of the model, "
                f"{total_num_kv_heads}, got {ranks}"
            )
        repeated = total_num_kv_heads * self.num_kv_head_replicas
        self.num_kv_heads = context.divide(repeated, "num_kv_heads of the model")
        kv_size = total_num_kv_heads * head_size
        super().__init__(hidden_size, [total_num_heads * head_size, kv_size, kv_size], bias, context, prefix)

    def rows_here(self, index: int) -> slice:
        """q: this rank's heads; k and v: its KV heads, which its neighbours may hold as well."""
        rank, heads = self.context.tp_rank, self.num_heads
        if index:
            rank, heads = rank // self.num_kv_head_replicas, self.num_kv_heads
        return slice(rank * heads * self.head_size, (rank + 1) * heads * self.head_size)

    def split(self, qkv: Array) -> tuple[Array, Array, Array]:
        """[T, out] -> q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]."""
        heads = qkv.reshape(len(qkv), -1, self.head_size)
        return (
            heads[:, : self.num_heads],
            heads[:, self.num_heads : self.num_heads + self.num_kv_heads],
            heads[:, self.num_heads + self.num_kv_heads :],
        )


class RowParallelLinear(LinearBase):
    """A rank holds what reads its share of the inputs; the outputs are sums over the ranks, and the bias is added once.

    Args:
        reduce_results: False leaves the sum to the caller.

    Upstream: upstream/vllm/model_executor/layers/linear.py:1392 — `RowParallelLinear`.
    """

    def __init__(
        self, input_size: int, output_size: int, bias: bool, context: ModelContext, prefix: str,
        reduce_results: bool = True,
    ) -> None:  # fmt: skip
        self.reduce_results = reduce_results
        super().__init__(input_size, output_size, prefix=prefix, bias=bias, context=context)

    def columns_here(self) -> slice:
        """This rank's share of the inputs."""
        return self.context.share(self.input_size, f"the inputs of {self.prefix}")

    def forward(self, x: Array) -> Array:
        """x [T, in / ranks] -> [T, out].

        Upstream: upstream/vllm/model_executor/layers/linear.py:1540 — `RowParallelLinear.forward`.
        """
        y = self.product(x)
        if self.reduce_results:
            y = self.context.all_reduce(y)
        return y if self.bias is None else y + self.bias


def _method_for(quant_config: QuantizationConfig | None, prefix: str) -> QuantizeMethodBase:
    method = UnquantizedLinearMethod() if quant_config is None else quant_config.get_quant_method(prefix, "linear")
    if method is None:
        raise ValueError(f"all linear layers should support quant method; none for {prefix!r}")
    return method
