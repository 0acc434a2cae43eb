"""AWQ checkpoints: 4 bits, asymmetric, packed along the outputs in an order made for one CUDA kernel.

`qweight` int32 [in, out / 8], `qzeros` int32 [groups, out / 8] in the same order, `scales` fp16 [groups, out].
Upstream twins: `vllm/model_executor/layers/quantization/awq.py`, `awq_marlin.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase, is_layer_skipped
from mini_vllm.layers.quantization.checkpoint_keys import AWQ
from mini_vllm.layers.quantization.grouped import GroupedLinearMethod
from mini_vllm.layers.quantization.repack import awq_unpack, ours_from_codes
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.parameter import PACKED, TensorSource


class AWQConfig(QuantizationConfig):
    """`bits` (or `w_bit`), `group_size` (`q_group_size`), `zero_point`, `modules_to_not_convert`.

    Upstream: upstream/vllm/model_executor/layers/quantization/awq.py:34 — `AWQConfig`.
    """

    def __init__(self, bits: int, group_size: int, zero_point: bool, not_converted: list[str] | None = None) -> None:
        if bits != 4:
            raise ValueError(f"currently, only 4-bit weight quantization is supported for AWQ, but got {bits} bits")
        if not zero_point:
            raise ValueError("quantization_config: zero_point = false is not supported for awq; allowed: true")
        self.bits, self.group_size, self.modules_to_not_convert = bits, group_size, list(not_converted or [])

    @classmethod
    def get_name(cls) -> str:
        """Name in the registry."""
        return "awq"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AWQConfig:
        """Upstream: upstream/vllm/model_executor/layers/quantization/awq.py:88 — `AWQConfig.from_config`."""
        read = AWQ.read(config)
        return cls(
            cls.get_from_keys(read, ["w_bit", "bits"]),
            cls.get_from_keys(read, ["q_group_size", "group_size"]),
            read["zero_point"],
            read.get("modules_to_not_convert"),
        )

    def get_quant_method(self, layer_name: str, kind: str = "linear") -> QuantizeMethodBase | None:
        """Names in `modules_to_not_convert` match as parts of a layer's name."""
        if kind != "linear":
            return None
        if is_layer_skipped(layer_name, self.modules_to_not_convert, skip_with_substr=True):
            return UnquantizedLinearMethod()
        return AWQLinearMethod(self)


class AWQLinearMethod(GroupedLinearMethod):
    """Upstream: upstream/vllm/model_executor/layers/quantization/awq.py:172 — `AWQLinearMethod`."""

    tensor_names = ("qweight", "qzeros", "scales")

    def __init__(self, config: AWQConfig) -> None:
        super().__init__(config.group_size, config.bits, symmetric=False)

    def load_shard(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        """To our layout."""
        codes = awq_unpack(source.read_stored("qweight", PACKED))
        expected = (layer.in_features, rows.stop - rows.start)
        if codes.shape != expected:
            raise ValueError(f"{layer.prefix}: qweight unpacks to shape {codes.shape}, expected {expected}")
        layer.weight_packed[rows] = ours_from_codes(codes.T, self.bits)
        self.store_scales(layer, rows, source.read("scales").T)
        layer.weight_zero_point[rows] = awq_unpack(source.read_stored("qzeros", PACKED)).T
