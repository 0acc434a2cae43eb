"""GPTQ checkpoints: 4 or 8 bits, groups along the inputs, which may be shuffled by importance (`desc_act`).

| Tensor | Shape | Holds |
|---|---|---|
| `qweight` | int32 [in * bits / 32, out] | codes, sequential along the inputs |
| `scales` | fp16 [groups, out] | |
| `qzeros` | int32 [groups, out * bits / 32] | zero points less one |
| `g_idx` | int32 [in] | the group of each input |

Upstream twin: `vllm/model_executor/layers/quantization/auto_gptq.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
    is_layer_skipped,
    shard_names,
)
from mini_vllm.layers.quantization.checkpoint_keys import GPTQ
from mini_vllm.layers.quantization.grouped import GroupedLinearMethod
from mini_vllm.layers.quantization.repack import ours_from_int32, unpack_int32
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.parameter import INDICES, PACKED, TensorSource
from mini_vllm.utils.arrays import Array


class GPTQConfig(QuantizationConfig):
    """`bits`, `group_size`, `desc_act`, `sym` of a checkpoint.

    Upstream's kernels take symmetric weights only, and its config refuses `sym: false`; here both are read.
    Upstream: upstream/vllm/model_executor/layers/quantization/auto_gptq.py:95 — `AutoGPTQConfig`.
    """

    def __init__(
        self, bits: int, group_size: int, desc_act: bool, sym: bool, v2: bool, only: list[str] | None = None
    ) -> None:
        # With one group for all inputs their order cannot matter.
        self.bits, self.group_size, self.sym, self.v2 = bits, group_size, sym, v2
        self.desc_act, self.only = desc_act and group_size != -1, only or []

    @classmethod
    def get_name(cls) -> str:
        """Name in the registry."""
        return "gptq"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> GPTQConfig:
        """`checkpoint_format` (or `format`) "gptq_v2" means that zero points are stored as they are.

        Upstream: upstream/vllm/model_executor/layers/quantization/auto_gptq.py:193 — `AutoGPTQConfig.from_config`.
        """
        read = GPTQ.read(config)
        only = read.get("modules_in_block_to_quantize", [])
        stored = cls.get_from_keys(read, ["checkpoint_format", "format"], "gptq")
        return cls(
            read["bits"], read["group_size"], read["desc_act"], read["sym"], stored == "gptq_v2",
            [name for entry in only for name in ([entry] if isinstance(entry, str) else entry)],
        )  # fmt: skip

    def get_quant_method(self, layer_name: str, kind: str = "linear") -> QuantizeMethodBase | None:
        """All projections of the layers, or those that the checkpoint names."""
        if kind != "linear":
            return None
        if self.only:
            left_out = [name for name in shard_names(layer_name) if not any(name.endswith(only) for only in self.only)]
            if is_layer_skipped(layer_name, left_out):
                return UnquantizedLinearMethod()
        return GPTQLinearMethod(self)


class GPTQLinearMethod(GroupedLinearMethod):
    """Upstream: upstream/vllm/model_executor/layers/quantization/auto_gptq.py:302 — `AutoGPTQLinearMethod`."""

    tensor_names = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, config: GPTQConfig) -> None:
        super().__init__(config.group_size, config.bits, config.sym)
        self.config = config

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """To our layout; with `desc_act` the inputs are brought into the order of their groups."""
        expected = (layer.in_features * self.bits // 32, rows.stop - rows.start)
        if source.shape("qweight") != expected:
            raise ValueError(f"{layer.prefix}: qweight has shape {source.shape('qweight')}, expected {expected}")
        packed = ours_from_int32(source.read_stored("qweight", PACKED).T)
        if self.config.desc_act and "g_idx" in source.names():
            packed = self.reorder(packed, self.input_order(layer, source.read_stored("g_idx", INDICES)))
        layer.weight_packed[rows] = packed
        self.store_scales(layer, rows, source.read("scales").T)
        if layer.weight_zero_point is not None:
            layer.weight_zero_point[rows] = self._zeros(source.read_stored("qzeros", PACKED)).T

    def _zeros(self, qzeros: Array) -> Array:
        """[groups, out]. The first format stored each zero point less one, and kernels add it back.

        Upstream: upstream/csrc/libtorch_stable/quantization/gptq/q_gemm.cu:202 —
        "int zero_offset = use_v2_format ? 0 : 1;"; a symmetric checkpoint's `qzeros` is not looked at.
        """
        stored = unpack_int32(qzeros, self.bits)
        return stored if self.config.v2 else stored + np.uint8(1)
