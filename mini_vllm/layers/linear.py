"""Projections: who holds which rows and columns of a weight, how it is stored, and what is exchanged afterwards.

    ColumnParallelLinear   a rank holds some rows of the weight, which are some of the outputs: nothing is exchanged
    RowParallelLinear      a rank holds some columns, which read those outputs: partial sums, added up over the ranks

Arrays are token-major, `x [T, in] -> [T, out]`; weights are [out, in], as checkpoints store them.
Upstream twin: `vllm/model_executor/layers/linear.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.utils.arrays import Array


class LinearBase(LinearWeights):
    """`y = x @ weight.T + bias`; what it is made of: see `LinearWeights`.

    lora: buffers for adapters (`lora/layers/base_linear.py`); None: there are none.

    Upstream: upstream/vllm/model_executor/layers/linear.py:231 — `LinearBase`.
    """

    lora: Any = None

    def forward(self, x: Array) -> Array:
        """x: [tokens, in] -> [tokens, out]."""
        y = self.product(x)
        return y if self.bias is None else y + self.bias

    def product(self, x: Array) -> Array:
        """`x @ weight.T`, and what adapters add to it.

        Codes are decoded a few rows at a time and multiplied from the left: see `apply`.
        """
        if isinstance(self.quant_method, UnquantizedLinearMethod):
            y = self.context.linear(x, self.weight)
        else:
            out = np.empty((self.out_features, len(x)), self.dtype)
            self.quant_method.apply(self, np.ascontiguousarray(x.T, self.dtype), out)
            y = np.ascontiguousarray(out.T)
        if self.lora is not None:
            self.lora.add_to(y, x)
        return y

    def project_into(self, x: Array, out: Array) -> None:
        """`out = weight @ x`, features first. x: [in, tokens]; out: [out, tokens]."""
        self.quant_method.apply(self, x, out)


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
